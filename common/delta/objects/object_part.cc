// The frames of a slice follow each other in the object, and so do those of neighbouring slices: a
// part has few ranges.
#include "common/delta/objects/object_part.h"

#include <algorithm>

namespace dws {

bool Selects(const SliceSelection& selection, RankSlice slice) {
  return !selection.has_value() || std::binary_search(selection->begin(), selection->end(), slice);
}

std::vector<ObjectRange> PartRanges(const ObjectHeader& header, const DeltaManifest& manifest,
                                    const SliceSelection& selection) {
  if (!selection.has_value()) return {{.offset = 0, .size_bytes = header.total_bytes()}};
  const uint64_t frames_begin = header.total_bytes() - header.frames_bytes;
  std::vector<ObjectRange> ranges = {{.offset = 0, .size_bytes = frames_begin}};
  for (const SliceDelta& slice : manifest.slices) {
    if (!Selects(selection, slice.slice)) continue;
    for (const FrameEntry& frame : slice.frames) {
      const uint64_t offset = frames_begin + frame.offset;
      if (ranges.back().offset + ranges.back().size_bytes == offset) {
        ranges.back().size_bytes += frame.size_bytes;
      } else {
        ranges.push_back({.offset = offset, .size_bytes = frame.size_bytes});
      }
    }
  }
  return ranges;
}

uint64_t SizeOf(const std::vector<ObjectRange>& ranges) {
  uint64_t size_bytes = 0;
  for (const ObjectRange& range : ranges) size_bytes += range.size_bytes;
  return size_bytes;
}

std::vector<ObjectRange> Within(const std::vector<ObjectRange>& ranges, uint64_t offset,
                                uint64_t length) {
  std::vector<ObjectRange> within;
  uint64_t begin = 0;
  for (const ObjectRange& range : ranges) {
    const uint64_t from = std::max(begin, offset);
    const uint64_t to = std::min(begin + range.size_bytes, offset + length);
    if (from < to) {
      within.push_back({.offset = range.offset + (from - begin), .size_bytes = to - from});
    }
    begin += range.size_bytes;
  }
  return within;
}

}  // namespace dws
