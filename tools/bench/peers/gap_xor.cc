// Buckets of whole tensors, about 64 MiB of weights each. A bucket's changed 16-bit words as gaps
// (u16; a gap that does not fit is split by words that do not change) and XOR masks (u16), the two
// arrays in one zstd frame of level 1. Tensors are known to both sides, so no names are sent.
#include <cstring>
#include <limits>

#include "tools/bench/peers/peer.h"
#include "tools/bench/peers/zstd_frame.h"

namespace dws::bench {
namespace {

constexpr int kLevel = 1;
constexpr uint64_t kBucketBytes = uint64_t{64} << 20;
constexpr uint64_t kGapMax = std::numeric_limits<uint16_t>::max();

// The tensors [first, result) are one bucket.
size_t BucketEnd(std::span<const TensorPair> tensors, size_t first) {
  uint64_t bytes = 0;
  size_t end = first;
  while (end < tensors.size() && (end == first || bytes < kBucketBytes)) {
    bytes += tensors[end++].spec.SizeBytes();
  }
  return end;
}

uint16_t WordAt(ByteSpan bytes, size_t at) {
  uint16_t word = 0;
  std::memcpy(&word, bytes.data() + at, std::min<size_t>(2, bytes.size() - at));
  return word;
}

std::vector<std::byte> EncodeBucket(std::span<const TensorPair> tensors) {
  std::vector<uint16_t> gaps;
  std::vector<uint16_t> masks;
  uint64_t gap = 0;
  for (const TensorPair& tensor : tensors) {
    for (size_t at = 0; at < tensor.before.size(); at += 2) {
      const auto mask = static_cast<uint16_t>(WordAt(tensor.before, at) ^ WordAt(tensor.after, at));
      if (mask == 0 && gap < kGapMax) {
        ++gap;
        continue;
      }
      gaps.push_back(static_cast<uint16_t>(gap));
      masks.push_back(mask);
      gap = 0;
    }
  }
  std::vector<std::byte> bytes(4 * gaps.size());
  std::memcpy(bytes.data(), gaps.data(), 2 * gaps.size());
  std::memcpy(bytes.data() + 2 * gaps.size(), masks.data(), 2 * masks.size());
  return CompressFrame(bytes, kLevel);
}

Result<std::vector<std::byte>> Encode(std::span<const TensorPair> tensors) {
  std::vector<std::byte> bytes;
  for (size_t first = 0; first < tensors.size();) {
    const size_t end = BucketEnd(tensors, first);
    const std::vector<std::byte> bucket = EncodeBucket(tensors.subspan(first, end - first));
    bytes.resize(bytes.size() + 4);
    StoreLe(bytes.data() + bytes.size() - 4, static_cast<uint32_t>(bucket.size()));
    bytes.insert(bytes.end(), bucket.begin(), bucket.end());
    first = end;
  }
  return bytes;
}

Status DecodeBucket(ByteSpan bucket, std::span<std::vector<std::byte>> states) {
  DWS_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, DecompressFrame(bucket));
  const size_t count = bytes.size() / 4;
  size_t tensor = 0;
  uint64_t word = 0;  // of `tensor`
  for (size_t i = 0; i < count; ++i) {
    word += LoadLe<uint16_t>(bytes.data() + 2 * i);
    while (tensor < states.size() && word >= CeilDiv(states[tensor].size(), 2)) {
      word -= CeilDiv(states[tensor++].size(), 2);
    }
    if (tensor == states.size()) return DataLossError("a gap leads out of its bucket");
    const auto mask = LoadLe<uint16_t>(bytes.data() + 2 * count + 2 * i);
    std::vector<std::byte>& state = states[tensor];
    state[2 * word] ^= static_cast<std::byte>(mask);
    if (2 * word + 1 < state.size()) state[2 * word + 1] ^= static_cast<std::byte>(mask >> 8);
    ++word;
  }
  return OkStatus();
}

Status Decode(ByteSpan bytes, std::span<const TensorPair> tensors, TensorStates& states) {
  for (size_t first = 0; first < tensors.size();) {
    const size_t end = BucketEnd(tensors, first);
    if (bytes.size() < 4) return DataLossError("a bucket is missing");
    const uint64_t size = LoadLe<uint32_t>(bytes.data());
    if (size > bytes.size() - 4) return DataLossError("a bucket is cut off");
    DWS_RETURN_IF_ERROR(
        DecodeBucket(bytes.subspan(4, size), std::span(states).subspan(first, end - first)));
    bytes = bytes.subspan(4 + size);
    first = end;
  }
  return OkStatus();
}

}  // namespace

Peer GapXor() {
  return {.id = "P2b",
          .name = "gaps + xor masks + zstd-1 in buckets",
          .bar = AtLeast(1.9),
          .encode = Encode,
          .decode = Decode};
}

}  // namespace dws::bench
