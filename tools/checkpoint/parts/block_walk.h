// Processes the blocks of a layout with a pool of threads, one window at a time. The blocks of a
// window are processed in any order, the results of windows are delivered in order. Only one window
// is in memory, however large the model is.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/model/layout.h"
#include "tools/checkpoint/parts/progress.h"

namespace dws::checkpoint {

inline constexpr size_t kWindowBlocksMax = 512;
inline constexpr uint64_t kWindowBytesMax = uint64_t{64} << 20;

// One block, and its place in the window.
struct WalkedBlock {
  RankSlice slice;
  uint32_t block = 0;   // of the slice
  size_t index = 0;     // in the window, below kWindowBlocksMax
  uint64_t offset = 0;  // number of bytes of the window before it
  uint64_t size_bytes = 0;
};

// What all passes over a model share. The objects it refers to outlive the passes.
struct Walk {
  const RankLayout& layout;
  ThreadPool& pool;
  const Progress& progress;
};

// Calls `work` once for each block of `slices`, on the pool's threads, with at most one call per
// worker at a time. Before and after each window it calls `prepare`, if there is one, and `deliver`
// with the window's blocks, on the calling thread. The first error in the order of blocks ends the
// walk, and so do errors of `deliver` and of the progress.
Status WalkBlocks(const Walk& walk, std::string_view step, std::span<const RankSlice> slices,
                  const std::function<Status(const WalkedBlock&, size_t worker)>& work,
                  const std::function<Status(std::span<const WalkedBlock>)>& deliver,
                  const std::function<void(std::span<const WalkedBlock>)>& prepare = nullptr);

// All slices of a layout, in order.
std::vector<RankSlice> AllSlices(const RankLayout& layout);

}  // namespace dws::checkpoint
