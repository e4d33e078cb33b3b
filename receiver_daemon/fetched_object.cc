#include "receiver_daemon/fetched_object.h"

#include <cstddef>

#include "common/delta/object.h"

namespace dws {

Result<FetchedObject> ParseObject(const Spool& spool, const RankLayout& layout) {
  std::vector<std::byte> buffer;
  DWS_ASSIGN_OR_RETURN(const ByteSpan start, spool.Read(0, kObjectHeaderBytes, buffer));
  DWS_ASSIGN_OR_RETURN(const ObjectHeader header, ParseObjectHeader(start));
  if (header.total_bytes() != spool.size_bytes()) {
    return DataLossError("a delta object of {} bytes says that it has {}", spool.size_bytes(),
                         header.total_bytes());
  }
  const uint64_t frames_begin = header.total_bytes() - header.frames_bytes;
  DWS_ASSIGN_OR_RETURN(const ByteSpan head, spool.Read(0, frames_begin, buffer));
  FetchedObject object;
  DWS_ASSIGN_OR_RETURN(object.manifest, ParseObjectManifest(head, layout));
  for (const SliceDelta& slice : object.manifest.slices) {
    for (const FrameEntry& entry : slice.frames) {
      object.frames.push_back({.slice = slice.slice,
                               .entry = entry,
                               .spool_offset = frames_begin + entry.offset,
                               .classes = slice.classes});
    }
  }
  return object;
}

Status CheckManifest(const DeltaManifest& manifest, const SyncTarget& target, TrainerRank rank,
                     WeightVersion base) {
  if (manifest.stream == target.stream && manifest.trainer_rank == rank &&
      manifest.version == target.version && manifest.base_version == base) {
    return OkStatus();
  }
  return DataLossError(
      "a delta object is stream {} rank {} version {} from {}, expected stream {} rank {} version "
      "{} from {}",
      ToString(manifest.stream), manifest.trainer_rank.value(), manifest.version.value(),
      manifest.base_version.value(), ToString(target.stream), rank.value(), target.version.value(),
      base.value());
}

}  // namespace dws
