// Reads only header and manifest, so that an object larger than memory stays in its file.
#include "common/spool/fetched_object.h"

#include <cstddef>

#include "common/base/check.h"
#include "common/delta/objects/object.h"

namespace dws {

Result<FetchedObject> ParseObject(const Spool& spool, const RankLayout& layout,
                                  const SliceSelection& slices) {
  std::vector<std::byte> buffer;
  DWS_ASSIGN_OR_RETURN(const ByteSpan start, spool.Read(0, kObjectHeaderBytes, buffer));
  DWS_ASSIGN_OR_RETURN(const ObjectHeader header, ParseObjectHeader(start));
  const uint64_t frames_begin = header.total_bytes() - header.frames_bytes;
  DWS_ASSIGN_OR_RETURN(const ByteSpan head, spool.Read(0, frames_begin, buffer));
  DWS_CHECK(head.size() == frames_begin && frames_begin <= spool.size_bytes());
  FetchedObject object{.manifest = {}, .frames = {}, .frames_begin = frames_begin};
  DWS_ASSIGN_OR_RETURN(object.manifest, ParseObjectManifest(head, layout));
  // A part is as large as the object only if they are the same.
  const bool whole = spool.size_bytes() == header.total_bytes();
  uint64_t part_end = frames_begin;
  for (const SliceDelta& slice : object.manifest.slices) {
    if (!Selects(slices, slice.slice)) continue;
    for (const FrameEntry& entry : slice.frames) {
      object.frames.push_back({.slice = slice.slice,
                               .entry = entry,
                               .spool_offset = whole ? frames_begin + entry.offset : part_end,
                               .classes = slice.classes});
      part_end += entry.size_bytes;
    }
  }
  if (whole || (slices.has_value() && spool.size_bytes() == part_end)) return object;
  if (!slices.has_value()) {
    return DataLossError("a delta object of {} bytes says that it has {}", spool.size_bytes(),
                         header.total_bytes());
  }
  return DataLossError(
      "a delta object of {} bytes says that it has {}, and {} in the part that was asked for",
      spool.size_bytes(), header.total_bytes(), part_end);
}

}  // namespace dws
