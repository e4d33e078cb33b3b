// weight_v000010/model-00000-of-00001.safetensors and its index. Level 1, content size in the
// frame, XXH3 128 of the new bytes as the checksum.
#include <xxhash.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "tools/bench/peers/peer.h"
#include "tools/bench/peers/zstd_frame.h"
#include "tools/bench/safetensors_file.h"

namespace dws::bench {
namespace {

constexpr int kLevel = 1;
const char* const kFile = "model-00000-of-00001.safetensors";

std::string HexDigest(ByteSpan bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  std::string text;
  for (const unsigned char byte : canonical.digest) text += fmt::format("{:02x}", byte);
  return text;
}

std::vector<std::byte> XorPayload(const TensorPair& tensor) {
  std::vector<std::byte> payload(tensor.before.size());
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = tensor.before[i] ^ tensor.after[i];
  return payload;
}

// u32 count, u32 byte positions, u8 values.
std::vector<std::byte> OverwritePayload(const TensorPair& tensor) {
  std::vector<uint32_t> positions;
  for (size_t i = 0; i < tensor.before.size(); ++i) {
    if (tensor.before[i] != tensor.after[i]) positions.push_back(static_cast<uint32_t>(i));
  }
  const size_t count = positions.size();
  std::vector<std::byte> payload(4 + 5 * count);
  StoreLe(payload.data(), static_cast<uint32_t>(count));
  std::memcpy(payload.data() + 4, positions.data(), 4 * count);
  for (size_t i = 0; i < count; ++i) payload[4 + 4 * count + i] = tensor.after[positions[i]];
  return payload;
}

// The file, and its index behind it.
std::vector<std::byte> Encode(std::span<const TensorPair> tensors, const char* encoding,
                              std::vector<std::byte> (*payload)(const TensorPair&)) {
  TensorFile file;
  std::vector<std::vector<std::byte>> frames;
  nlohmann::ordered_json index = {{"metadata",
                                   {{"version", "000010"},
                                    {"base_version", "000009"},
                                    {"delta_encoding", encoding},
                                    {"compression_format", "zstd"},
                                    {"checksum_format", "xxh3-128"}}},
                                  {"weight_map", nlohmann::ordered_json::object()}};
  for (const TensorPair& tensor : tensors) {
    if (tensor.before == tensor.after) continue;
    frames.push_back(CompressFrame(payload(tensor), kLevel));
    file.metadata[tensor.spec.name] = HexDigest(tensor.after);
    file.tensors.push_back(
        {.name = tensor.spec.name, .dtype = "U8", .shape = {frames.back().size()}, .bytes = {}});
    index["weight_map"][tensor.spec.name] = kFile;
  }
  for (size_t i = 0; i < frames.size(); ++i) file.tensors[i].bytes = frames[i];
  std::vector<std::byte> bytes = WriteTensorFile(file);
  const std::string text = index.dump();
  const ByteSpan tail = AsBytes(text);
  bytes.insert(bytes.end(), tail.begin(), tail.end());
  return bytes;
}

Status ApplyXor(ByteSpan payload, std::vector<std::byte>& state) {
  if (payload.size() != state.size()) return DataLossError("an xor of another size");
  for (size_t i = 0; i < state.size(); ++i) state[i] ^= payload[i];
  return OkStatus();
}

Status ApplyOverwrite(ByteSpan payload, std::vector<std::byte>& state) {
  const uint64_t count = payload.size() < 4 ? 0 : LoadLe<uint32_t>(payload.data());
  if (payload.size() != 4 + 5 * count) return DataLossError("an overwrite of another size");
  for (size_t i = 0; i < count; ++i) {
    const auto at = LoadLe<uint32_t>(payload.data() + 4 + 4 * i);
    if (at >= state.size()) return DataLossError("byte {} is outside its tensor", at);
    state[at] = payload[4 + 4 * count + i];
  }
  return OkStatus();
}

Status Decode(ByteSpan bytes, std::span<const TensorPair> tensors, TensorStates& states,
              Status (*apply)(ByteSpan, std::vector<std::byte>&)) {
  DWS_ASSIGN_OR_RETURN(const TensorFile file, ParseTensorFile(bytes, kFile));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string& name = tensors[i].spec.name;
    const auto digest = file.metadata.find(name);
    if (digest == file.metadata.end()) continue;  // unchanged
    DWS_ASSIGN_OR_RETURN(const FileTensor entry, file.Find(name));
    DWS_ASSIGN_OR_RETURN(const std::vector<std::byte> payload, DecompressFrame(entry.bytes));
    DWS_RETURN_IF_ERROR(apply(payload, states[i]));
    if (HexDigest(states[i]) != digest->second) {
      return DataLossError("'{}' has another checksum than its file says", name);
    }
  }
  return OkStatus();
}

}  // namespace

Peer SlimeXor() {
  return {.id = "P2a",
          .name = "slime format B: xor + zstd-1",
          .bar = AtLeast(2.8),
          .encode = [](std::span<const TensorPair> tensors) -> Result<std::vector<std::byte>> {
            return Encode(tensors, "xor", XorPayload);
          },
          .decode = [](ByteSpan bytes, std::span<const TensorPair> tensors,
                       TensorStates& states) { return Decode(bytes, tensors, states, ApplyXor); }};
}

Peer SlimeOverwrite() {
  return {.id = "P2c",
          .name = "slime format B: overwrite + zstd-1",
          .bar = std::nullopt,
          .encode = [](std::span<const TensorPair> tensors) -> Result<std::vector<std::byte>> {
            return Encode(tensors, "overwrite", OverwritePayload);
          },
          .decode =
              [](ByteSpan bytes, std::span<const TensorPair> tensors, TensorStates& states) {
                return Decode(bytes, tensors, states, ApplyOverwrite);
              }};
}

}  // namespace dws::bench
