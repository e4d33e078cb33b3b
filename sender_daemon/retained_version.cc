#include "sender_daemon/retained_version.h"

#include <algorithm>

#include "common/delta/frame.h"

namespace dws {

Status RetainedVersion::FindBlocks(RankSlice slice, uint32_t first_block,
                                   std::vector<EncodedBlockView>& blocks) const {
  std::fill(blocks.begin(), blocks.end(), EncodedBlockView{});
  const auto found = std::lower_bound(
      manifest.slices.begin(), manifest.slices.end(), slice,
      [](const SliceDelta& delta, RankSlice wanted) { return delta.slice < wanted; });
  if (found == manifest.slices.end() || found->slice != slice) return OkStatus();
  const uint64_t end = uint64_t{first_block} + blocks.size();
  for (const FrameEntry& entry : found->frames) {
    if (entry.first_block >= end) break;
    if (uint64_t{entry.first_block} + entry.block_count <= first_block) continue;
    auto views = ParseFrame(FrameBytes(object, header, entry), entry);
    if (!views.ok()) {
      return Annotate(views.status(),
                      fmt::format("retained version {} in the sender's memory, slice {}",
                                  version.value(), slice.value()));
    }
    for (uint32_t i = 0; i < entry.block_count; ++i) {
      const uint64_t block = uint64_t{entry.first_block} + i;
      if (block >= first_block && block < end) blocks[block - first_block] = (*views)[i];
    }
  }
  return OkStatus();
}

}  // namespace dws
