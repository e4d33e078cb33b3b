// Takes a pool of threads through the blocks of a layout, a window at a time: blocks of a window in
// no order, the results of windows in theirs. However large the model, what is held is one window.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/model/layout.h"
#include "tools/checkpoint/progress.h"

namespace dws::checkpoint {

inline constexpr size_t kWindowBlocksMax = 512;
inline constexpr uint64_t kWindowBytesMax = uint64_t{64} << 20;

struct WalkedBlock {
  RankSlice slice;
  uint32_t block = 0;   // of the slice
  size_t index = 0;     // of the window, below kWindowBlocksMax
  uint64_t offset = 0;  // bytes of the window before it
  uint64_t size_bytes = 0;
};

// What all passes over a model share. What it points to outlives them.
struct Walk {
  const RankLayout& layout;
  ThreadPool& pool;
  const Progress& progress;
};

// `work` is called once for each block of `slices` in their order, from the pool's threads, workers
// apart; `deliver` after each window with its blocks, from the calling thread. The first error in
// the order of blocks ends the walk, as do those of `deliver` and of the progress.
Status WalkBlocks(const Walk& walk, std::string_view step, std::span<const RankSlice> slices,
                  const std::function<Status(const WalkedBlock&, size_t worker)>& work,
                  const std::function<Status(std::span<const WalkedBlock>)>& deliver);

// All slices of a layout, in order.
std::vector<RankSlice> AllSlices(const RankLayout& layout);

}  // namespace dws::checkpoint
