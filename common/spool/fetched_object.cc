// Reads only header and manifest, so that an object larger than memory stays in its file.
#include "common/spool/fetched_object.h"

#include <cstddef>

#include "common/base/check.h"
#include "common/delta/objects/object.h"

namespace dws {

std::vector<SpooledFrame> PartFrames(const DeltaManifest& manifest, const SliceSelection& slices,
                                     uint64_t frames_begin) {
  std::vector<SpooledFrame> frames;
  for (const SliceDelta& slice : manifest.slices) {
    if (!Selects(slices, slice.slice)) continue;
    for (const FrameEntry& entry : slice.frames) {
      frames.push_back({.slice = slice.slice,
                        .entry = entry,
                        .spool_offset = frames_begin,
                        .classes = slice.classes});
      frames_begin += entry.size_bytes;
    }
  }
  return frames;
}

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
  object.frames = PartFrames(object.manifest, slices, frames_begin);
  uint64_t part_end = frames_begin;
  for (SpooledFrame& frame : object.frames) {
    part_end += frame.entry.size_bytes;
    if (whole) frame.spool_offset = frames_begin + frame.entry.offset;
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
