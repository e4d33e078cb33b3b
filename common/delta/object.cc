#include "common/delta/object.h"

#include <algorithm>
#include <array>

#include "common/base/check.h"
#include "common/delta/checksum.h"
#include "common/delta/compression.h"
#include "common/delta/frame.h"
#include "common/delta/manifest.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// As PNG's: the high bit, both line ends and ^Z show what a text-mode transfer did.
constexpr std::array<uint8_t, 8> kMagic = {0x89, 'D', 'W', 'S', '\r', '\n', 0x1A, '\n'};
constexpr uint32_t kFormatVersion = 1;
constexpr uint32_t kManifestCompressedFlag = 1;

// Offsets in the header; bytes 48 to 55 are zero.
constexpr size_t kVersionAt = 8;
constexpr size_t kFlagsAt = 12;
constexpr size_t kManifestBytesAt = 16;
constexpr size_t kManifestRawBytesAt = 24;
constexpr size_t kManifestChecksumAt = 32;
constexpr size_t kFramesBytesAt = 40;
constexpr size_t kReservedAt = 48;
constexpr size_t kHeaderChecksumAt = 56;

void StoreHeader(const ObjectHeader& header, std::byte* to) {
  std::memcpy(to, kMagic.data(), kMagic.size());
  StoreLe(to + kVersionAt, kFormatVersion);
  StoreLe(to + kFlagsAt, header.manifest_compressed ? kManifestCompressedFlag : uint32_t{0});
  StoreLe(to + kManifestBytesAt, header.manifest_bytes);
  StoreLe(to + kManifestRawBytesAt, header.manifest_raw_bytes);
  StoreLe(to + kManifestChecksumAt, header.manifest_checksum);
  StoreLe(to + kFramesBytesAt, header.frames_bytes);
  StoreLe(to + kReservedAt, uint64_t{0});
  StoreLe(to + kHeaderChecksumAt, Checksum(ByteSpan(to, kHeaderChecksumAt)));
}

// The frames of one slice: their entries and, appended to `frames`, their bytes.
SliceDelta BuildSlice(const SliceBlocks& slice, std::vector<std::byte>& frames) {
  SliceDelta delta{.slice = slice.slice, .nnz = 0, .before = slice.before, .after = slice.after};
  size_t next = 0;
  while (true) {
    while (next < slice.blocks.size() && slice.blocks[next].mode == BlockMode::kEmpty) ++next;
    if (next == slice.blocks.size()) return delta;
    const size_t count = BlocksOfNextFrame(slice.blocks.subspan(next));
    const std::span<const EncodedBlock> blocks = slice.blocks.subspan(next, count);
    const std::vector<std::byte> frame = BuildFrame(blocks);
    delta.frames.push_back({.first_block = static_cast<uint32_t>(next),
                            .block_count = static_cast<uint32_t>(count),
                            .offset = frames.size(),
                            .size_bytes = frame.size(),
                            .checksum = FrameChecksum(frame)});
    frames.insert(frames.end(), frame.begin(), frame.end());
    for (const EncodedBlock& block : blocks) delta.nnz += block.nnz;
    next += count;
  }
}

Result<std::vector<std::byte>> RawManifest(ByteSpan stored, const ObjectHeader& header) {
  if (!header.manifest_compressed) return std::vector<std::byte>(stored.begin(), stored.end());
  std::vector<std::byte> raw(header.manifest_raw_bytes);
  if (Status status = Decompress(stored, raw); !status.ok()) return Annotate(status, "manifest");
  return raw;
}

}  // namespace

uint64_t ObjectHeader::total_bytes() const {
  return kObjectHeaderBytes + manifest_bytes + frames_bytes;
}

std::vector<std::byte> BuildObject(DeltaManifest identity, std::span<const SliceBlocks> slices) {
  std::vector<std::byte> frames;
  identity.slices.clear();
  for (const SliceBlocks& slice : slices) {
    SliceDelta delta = BuildSlice(slice, frames);
    if (!delta.frames.empty()) identity.slices.push_back(std::move(delta));
  }
  std::vector<std::byte> manifest = SerializeManifest(identity);
  ObjectHeader header{.manifest_bytes = manifest.size(),
                      .frames_bytes = frames.size(),
                      .manifest_raw_bytes = manifest.size()};
  if (std::vector<std::byte> compressed = Compress(manifest); compressed.size() < manifest.size()) {
    manifest = std::move(compressed);
    header.manifest_bytes = manifest.size();
    header.manifest_compressed = true;
  }
  header.manifest_checksum = Checksum(manifest);

  std::vector<std::byte> object;
  object.reserve(header.total_bytes());
  object.resize(kObjectHeaderBytes);
  StoreHeader(header, object.data());
  object.insert(object.end(), manifest.begin(), manifest.end());
  object.insert(object.end(), frames.begin(), frames.end());
  return object;
}

Result<ObjectHeader> ParseObjectHeader(ByteSpan bytes) {
  if (bytes.size() < kObjectHeaderBytes) {
    return DataLossError("object: {} bytes, a header has {}", bytes.size(), kObjectHeaderBytes);
  }
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    return DataLossError("object: it does not begin with the eight bytes of a delta object");
  }
  // Every format version keeps magic, version and checksum where they are, so damage to the version
  // is damage.
  const uint64_t expected = LoadLe<uint64_t>(bytes.data() + kHeaderChecksumAt);
  if (const uint64_t found = Checksum(bytes.first(kHeaderChecksumAt)); found != expected) {
    return DataLossError("object header: checksum {:016x}, expected {:016x}", found, expected);
  }
  if (const uint32_t version = LoadLe<uint32_t>(bytes.data() + kVersionAt);
      version != kFormatVersion) {
    return UnimplementedError("object: format version {}, this build knows {}", version,
                              kFormatVersion);
  }
  const uint32_t flags = LoadLe<uint32_t>(bytes.data() + kFlagsAt);
  if (flags > kManifestCompressedFlag || LoadLe<uint64_t>(bytes.data() + kReservedAt) != 0) {
    return DataLossError(
        "object header: flags {:x} or reserved bytes are not as version 1 has them", flags);
  }
  const ObjectHeader header{
      .manifest_bytes = LoadLe<uint64_t>(bytes.data() + kManifestBytesAt),
      .frames_bytes = LoadLe<uint64_t>(bytes.data() + kFramesBytesAt),
      .manifest_raw_bytes = LoadLe<uint64_t>(bytes.data() + kManifestRawBytesAt),
      .manifest_checksum = LoadLe<uint64_t>(bytes.data() + kManifestChecksumAt),
      .manifest_compressed = flags == kManifestCompressedFlag};
  const bool sizes_agree = header.manifest_compressed
                               ? header.manifest_bytes < header.manifest_raw_bytes
                               : header.manifest_bytes == header.manifest_raw_bytes;
  if (!sizes_agree || header.manifest_raw_bytes > limits::kManifestBytesMax ||
      header.frames_bytes > limits::kObjectBytesMax) {
    return DataLossError("object header: a manifest of {} bytes ({} stored) and {} bytes of frames",
                         header.manifest_raw_bytes, header.manifest_bytes, header.frames_bytes);
  }
  return header;
}

Result<DeltaManifest> ParseObjectManifest(ByteSpan head, const RankLayout& layout) {
  DWS_ASSIGN_OR_RETURN(const ObjectHeader header, ParseObjectHeader(head));
  if (head.size() - kObjectHeaderBytes < header.manifest_bytes) {
    return DataLossError("object: {} bytes, header and manifest have {}", head.size(),
                         kObjectHeaderBytes + header.manifest_bytes);
  }
  const ByteSpan stored = head.subspan(kObjectHeaderBytes, header.manifest_bytes);
  if (const uint64_t checksum = Checksum(stored); checksum != header.manifest_checksum) {
    return DataLossError("manifest: checksum {:016x}, expected {:016x}", checksum,
                         header.manifest_checksum);
  }
  if (header.manifest_raw_bytes > ManifestBytesMax(layout)) {
    return DataLossError("manifest: {} bytes, at most {} are possible for this layout",
                         header.manifest_raw_bytes, ManifestBytesMax(layout));
  }
  DWS_ASSIGN_OR_RETURN(const std::vector<std::byte> raw, RawManifest(stored, header));
  DWS_ASSIGN_OR_RETURN(DeltaManifest manifest, DeserializeManifest(raw));
  DWS_RETURN_IF_ERROR(CheckManifest(manifest, layout, header.frames_bytes));
  return manifest;
}

ByteSpan FrameBytes(ByteSpan object, const ObjectHeader& header, const FrameEntry& entry) {
  const ByteSpan frames =
      object.subspan(std::min<uint64_t>(object.size(), kObjectHeaderBytes + header.manifest_bytes));
  const uint64_t begin = std::min<uint64_t>(frames.size(), entry.offset);
  return frames.subspan(begin, std::min<uint64_t>(frames.size() - begin, entry.size_bytes));
}

}  // namespace dws
