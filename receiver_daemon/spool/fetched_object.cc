// Reads only header and manifest, so that an object larger than memory stays in its file.
#include "receiver_daemon/spool/fetched_object.h"

#include <cstddef>

#include "common/base/check.h"
#include "common/delta/objects/object.h"

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
  DWS_CHECK(head.size() == frames_begin && frames_begin <= spool.size_bytes());
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

}  // namespace dws
