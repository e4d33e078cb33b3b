#include "tools/checkpoint/parts/block_walk.h"

#include <algorithm>

namespace dws::checkpoint {
namespace {

// The number of blocks a worker takes at once. Consecutive blocks often share a frame, which is
// then read only once.
constexpr size_t kBatchBlocks = 8;

// Divides the blocks of some slices into windows.
class Windows {
 public:
  Windows(const RankLayout& layout, std::span<const RankSlice> slices)
      : layout_(layout), slices_(slices) {}

  // Empty at the end.
  std::vector<WalkedBlock> Next() {
    std::vector<WalkedBlock> window;
    uint64_t bytes = 0;
    while (window.size() < kWindowBlocksMax && bytes < kWindowBytesMax && !slices_.empty()) {
      const RankLayout::SliceEntry& entry = layout_.slice(slices_.front());
      if (block_ == entry.blocks) {
        slices_ = slices_.subspan(1);
        block_ = 0;
        continue;
      }
      const uint64_t size_bytes =
          uint64_t{BlockElements(entry.elements, block_)} * ElementBytes(entry.dtype);
      window.push_back({.slice = slices_.front(),
                        .block = block_++,
                        .index = window.size(),
                        .offset = bytes,
                        .size_bytes = size_bytes});
      bytes += size_bytes;
    }
    return window;
  }

 private:
  const RankLayout& layout_;
  std::span<const RankSlice> slices_;
  uint32_t block_ = 0;
};

}  // namespace

Status WalkBlocks(const Walk& walk, std::string_view step, std::span<const RankSlice> slices,
                  const std::function<Status(const WalkedBlock&, size_t worker)>& work,
                  const std::function<Status(std::span<const WalkedBlock>)>& deliver,
                  const std::function<void(std::span<const WalkedBlock>)>& prepare) {
  ProgressStep progress{.step = step};
  for (const RankSlice slice : slices) {
    progress.total_bytes += walk.layout.slice(slice).size_bytes();
  }
  DWS_RETURN_IF_ERROR(walk.progress(progress));
  Windows windows(walk.layout, slices);
  while (true) {
    const std::vector<WalkedBlock> window = windows.Next();
    if (window.empty()) return OkStatus();
    if (prepare) prepare(window);
    std::vector<Status> failed(CeilDiv(window.size(), kBatchBlocks));
    walk.pool.ParallelFor(failed.size(), [&](size_t batch, size_t worker) {
      const size_t begin = batch * kBatchBlocks;
      const size_t end = std::min(window.size(), begin + kBatchBlocks);
      for (size_t i = begin; i < end && failed[batch].ok(); ++i) {
        failed[batch] = work(window[i], worker);
      }
    });
    for (const Status& status : failed) DWS_RETURN_IF_ERROR(status);
    DWS_RETURN_IF_ERROR(deliver(window));
    progress.done_bytes += window.back().offset + window.back().size_bytes;
    DWS_RETURN_IF_ERROR(walk.progress(progress));
  }
}

std::vector<RankSlice> AllSlices(const RankLayout& layout) {
  std::vector<RankSlice> slices;
  for (uint32_t s = 0; s < layout.slice_count(); ++s) slices.emplace_back(s);
  return slices;
}

}  // namespace dws::checkpoint
