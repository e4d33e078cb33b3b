// Some consecutive blocks of one slice: what a transfer of full tensors asks for and sends.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "common/model/layout.h"
#include "common/model/limits.h"

namespace dws {

// A plain value.
struct BlockRange {
  RankSlice slice;
  uint32_t first_block = 0;
  uint32_t block_count = 0;

  friend bool operator==(const BlockRange&, const BlockRange&) = default;
};

inline uint64_t BlockBytes(DType dtype) {
  return uint64_t{limits::kBlockElements} * ElementBytes(dtype);
}
// Returns how many whole blocks are in `bytes`, but at least one.
inline uint32_t BlocksIn(uint64_t bytes, DType dtype) {
  return static_cast<uint32_t>(std::max<uint64_t>(1, bytes / BlockBytes(dtype)));
}
// Returns the offset of the range in its slice, and its size, both in bytes. The range is inside
// the slice.
inline uint64_t FirstByte(const RankLayout& layout, const BlockRange& range) {
  return range.first_block * BlockBytes(layout.slice(range.slice).dtype);
}
inline uint64_t SizeBytes(const RankLayout& layout, const BlockRange& range) {
  const RankLayout::SliceEntry& slice = layout.slice(range.slice);
  if (range.block_count == 0) return 0;
  const uint64_t end = uint64_t{range.first_block} + range.block_count;
  return std::min(end * BlockBytes(slice.dtype), slice.size_bytes()) - FirstByte(layout, range);
}
inline bool IsInside(const RankLayout& layout, const BlockRange& range) {
  if (range.slice.value() >= layout.slice_count()) return false;
  const uint32_t blocks = layout.slice(range.slice).blocks;
  return range.first_block <= blocks && range.block_count <= blocks - range.first_block;
}

// All blocks of each slice.
inline std::vector<BlockRange> WholeSlices(const RankLayout& layout,
                                           std::span<const RankSlice> slices) {
  std::vector<BlockRange> ranges;
  ranges.reserve(slices.size());
  for (const RankSlice slice : slices) {
    ranges.push_back({.slice = slice, .block_count = layout.slice(slice).blocks});
  }
  return ranges;
}
// Returns every slice of the layout as a range.
inline std::vector<BlockRange> WholeSlices(const RankLayout& layout) {
  std::vector<RankSlice> slices;
  for (uint32_t s = 0; s < layout.slice_count(); ++s) slices.emplace_back(s);
  return WholeSlices(layout, slices);
}

}  // namespace dws
