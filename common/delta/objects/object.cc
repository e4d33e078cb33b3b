#include "common/delta/objects/object.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/delta/bits/checksum.h"
#include "common/delta/bits/compression.h"
#include "common/delta/objects/manifest.h"
#include "common/model/limits.h"

namespace dws {

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
  // This check comes first: the checksum covers the sizes that bound the allocations below.
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

// Clipped to the object: a caller with a cut-off object gets fewer bytes, never bytes beyond it.
ByteSpan FrameBytes(ByteSpan object, const ObjectHeader& header, const FrameEntry& entry) {
  const ByteSpan frames =
      object.subspan(std::min<uint64_t>(object.size(), kObjectHeaderBytes + header.manifest_bytes));
  const uint64_t begin = std::min<uint64_t>(frames.size(), entry.offset);
  return frames.subspan(begin, std::min<uint64_t>(frames.size() - begin, entry.size_bytes));
}

}  // namespace dws
