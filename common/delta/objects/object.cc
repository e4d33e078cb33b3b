#include "common/delta/objects/object.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/delta/bits/checksum.h"
#include "common/delta/bits/compression.h"
#include "common/delta/objects/frame.h"
#include "common/delta/objects/manifest.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// Builds the frames of one slice. Returns their entries and appends their bytes to `frames`.
SliceDelta BuildSlice(const SliceBlocks& slice, std::vector<std::byte>& frames) {
  SliceDelta delta{.slice = slice.slice, .nnz = 0, .before = slice.before, .after = slice.after};
  size_t next = 0;
  while (true) {
    while (next < slice.blocks.size() && slice.blocks[next].mode == BlockMode::kEmpty) ++next;
    if (next == slice.blocks.size()) return delta;
    const size_t count = BlocksOfNextFrame(slice.blocks.subspan(next));
    DWS_CHECK(count > 0 && count <= slice.blocks.size() - next);
    const std::span<const EncodedBlock> blocks = slice.blocks.subspan(next, count);
    const std::vector<std::byte> frame = BuildFrame(blocks);
    delta.frames.push_back({.first_block = static_cast<uint32_t>(next),
                            .block_count = static_cast<uint32_t>(count),
                            .offset = frames.size(),
                            .size_bytes = frame.size(),
                            .checksum = FrameChecksum(frame)});
    frames.insert(frames.end(), frame.begin(), frame.end());
    for (const EncodedBlock& block : blocks) {
      delta.nnz += block.nnz;
      if (block.mode == BlockMode::kClassSplit) delta.classes = slice.classes;
    }
    next += count;
  }
}

}  // namespace

std::vector<std::byte> BuildObject(DeltaManifest identity, std::span<const SliceBlocks> slices) {
  std::vector<std::byte> frames;
  identity.slices.clear();
  for (const SliceBlocks& slice : slices) {
    DWS_CHECK(identity.slices.empty() || identity.slices.back().slice < slice.slice);
    SliceDelta delta = BuildSlice(slice, frames);
    if (!delta.frames.empty()) identity.slices.push_back(std::move(delta));
  }
  std::vector<std::byte> object = BuildObjectHead(identity, frames.size());
  object.reserve(object.size() + frames.size());
  object.insert(object.end(), frames.begin(), frames.end());
  return object;
}

std::vector<std::byte> BuildObjectHead(const DeltaManifest& manifest, uint64_t frames_bytes) {
  std::vector<std::byte> stored = SerializeManifest(manifest);
  ObjectHeader header{.manifest_bytes = stored.size(),
                      .frames_bytes = frames_bytes,
                      .manifest_raw_bytes = stored.size()};
  if (std::vector<std::byte> compressed = Compress(stored); compressed.size() < stored.size()) {
    stored = std::move(compressed);
    header.manifest_bytes = stored.size();
    header.manifest_compressed = true;
  }
  header.manifest_checksum = Checksum(stored);
  std::vector<std::byte> head(kObjectHeaderBytes);
  StoreObjectHeader(header, head.data());
  head.insert(head.end(), stored.begin(), stored.end());
  DWS_CHECK(head.size() == kObjectHeaderBytes + header.manifest_bytes);
  return head;
}

Result<std::vector<std::byte>> UnpackManifest(ByteSpan stored, const ObjectHeader& header) {
  if (!header.manifest_compressed) return std::vector<std::byte>(stored.begin(), stored.end());
  std::vector<std::byte> raw(header.manifest_raw_bytes);
  if (Status status = Decompress(stored, raw); !status.ok()) return Annotate(status, "manifest");
  return raw;
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
  DWS_ASSIGN_OR_RETURN(const std::vector<std::byte> raw, UnpackManifest(stored, header));
  DWS_ASSIGN_OR_RETURN(DeltaManifest manifest, DeserializeManifest(raw, &layout));
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
