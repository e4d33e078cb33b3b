#include "common/delta/delta_link.h"

#include <algorithm>

#include "common/delta/frame.h"

namespace dws {

Status FindBlocks(const DeltaLink& link, RankSlice slice, uint32_t first_block, uint32_t count,
                  LinkBlocks& blocks) {
  blocks.views.assign(count, EncodedBlockView{});
  blocks.buffers.clear();
  const std::vector<SliceDelta>& slices = link.manifest->slices;
  const auto found = std::lower_bound(
      slices.begin(), slices.end(), slice,
      [](const SliceDelta& delta, RankSlice wanted) { return delta.slice < wanted; });
  if (found == slices.end() || found->slice != slice) return OkStatus();
  const uint64_t end = uint64_t{first_block} + count;
  for (const FrameEntry& entry : found->frames) {
    if (entry.first_block >= end) break;
    if (uint64_t{entry.first_block} + entry.block_count <= first_block) continue;
    DWS_ASSIGN_OR_RETURN(const ByteSpan bytes, link.frame(entry, blocks.buffers.emplace_back()));
    auto views = ParseFrame(bytes, entry);
    if (!views.ok()) {
      return Annotate(views.status(), fmt::format("version {}, slice {}",
                                                  link.manifest->version.value(), slice.value()));
    }
    for (uint32_t i = 0; i < entry.block_count; ++i) {
      const uint64_t block = uint64_t{entry.first_block} + i;
      if (block >= first_block && block < end) blocks.views[block - first_block] = (*views)[i];
    }
  }
  return OkStatus();
}

}  // namespace dws
