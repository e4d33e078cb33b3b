#include "common/delta/objects/delta_link.h"

#include <algorithm>
#include <iterator>

#include "common/base/check.h"
#include "common/delta/objects/frame.h"

namespace dws {

namespace {

// nullptr: the delta does not touch the slice.
const SliceDelta* FindSlice(const DeltaLink& link, RankSlice slice) {
  const std::vector<SliceDelta>& slices = link.manifest->slices;
  const auto found = std::lower_bound(
      slices.begin(), slices.end(), slice,
      [](const SliceDelta& delta, RankSlice wanted) { return delta.slice < wanted; });
  return found != slices.end() && found->slice == slice ? &*found : nullptr;
}

// The views point to `buffer` or to other memory, as DeltaLink::frame says.
Result<std::vector<EncodedBlockView>> ReadFrame(const DeltaLink& link, RankSlice slice,
                                                const FrameEntry& entry,
                                                std::vector<std::byte>& buffer) {
  DWS_ASSIGN_OR_RETURN(const ByteSpan bytes, link.frame(entry, buffer));
  auto views = ParseFrame(bytes, entry);
  if (views.ok()) return views;
  return Annotate(views.status(), fmt::format("version {}, slice {}",
                                              link.manifest->version.value(), slice.value()));
}

}  // namespace

const ClassTable* ClassesOf(const DeltaLink& link, RankSlice slice) {
  const SliceDelta* const found = FindSlice(link, slice);
  return found != nullptr && found->classes.has_value() ? &*found->classes : nullptr;
}

bool NeedsOldWeights(const DeltaLink& link) {
  return std::ranges::any_of(link.manifest->slices,
                             [](const SliceDelta& slice) { return slice.classes.has_value(); });
}

Status FindBlocks(const DeltaLink& link, RankSlice slice, uint32_t first_block, uint32_t count,
                  LinkBlocks& blocks) {
  blocks.views.assign(count, EncodedBlockView{});
  blocks.buffers.clear();
  const SliceDelta* const found = FindSlice(link, slice);
  if (found == nullptr) return OkStatus();
  const uint64_t end = uint64_t{first_block} + count;
  for (const FrameEntry& entry : found->frames) {
    if (entry.first_block >= end) break;
    if (uint64_t{entry.first_block} + entry.block_count <= first_block) continue;
    DWS_ASSIGN_OR_RETURN(const auto views,
                         ReadFrame(link, slice, entry, blocks.buffers.emplace_back()));
    DWS_CHECK(views.size() == entry.block_count);
    for (uint32_t i = 0; i < entry.block_count; ++i) {
      const uint64_t block = uint64_t{entry.first_block} + i;
      if (block >= first_block && block < end) blocks.views[block - first_block] = views[i];
    }
  }
  return OkStatus();
}

const FrameEntry* LastFrame::EntryOf(const SliceDelta& slice, uint32_t block) {
  const auto after = std::upper_bound(
      slice.frames.begin(), slice.frames.end(), block,
      [](uint32_t wanted, const FrameEntry& frame) { return wanted < frame.first_block; });
  if (after == slice.frames.begin()) return nullptr;
  const FrameEntry& entry = *std::prev(after);
  return block - entry.first_block < entry.block_count ? &entry : nullptr;
}

Result<EncodedBlockView> LinkReader::Find(RankSlice slice, uint32_t block) {
  const SliceDelta* const found = FindSlice(link_, slice);
  if (found == nullptr) return EncodedBlockView();
  return frame_.Find(*found, block, [&](const FrameEntry& entry) {
    return ReadFrame(link_, slice, entry, buffer_);
  });
}

}  // namespace dws
