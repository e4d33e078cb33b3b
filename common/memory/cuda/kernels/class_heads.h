// The classes of one class-split block (common/delta/FORMAT.md, mode 3): its thresholds, and the
// stream of the ranks of each class. Ranks are read when the sweep over the block needs them, so at
// most 32 of each class are in memory.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/gap_stream.h"
#include "common/memory/cuda/kernels/kernel_args.h"
#include "common/memory/cuda/kernels/stage_task.h"

namespace dws::cuda::kernels {

inline constexpr uint32_t kClassesMax = 8;
inline constexpr uint32_t kNoRank = 0xFFFFFFFF;

// Lanes of a warp times the elements of one lane in a row of the sweep (class_sweep.h), at most.
inline constexpr uint32_t kRowElementsMax = 1024;

// The class table, shifted for one block. Uniform.
struct BlockTable {
  int32_t hot_below = 0;
  int32_t hot_scale = 0;
  uint32_t class_count = 1;
  uint64_t thresholds = 0;  // a byte each

  // The smallest magnitude byte of class `c`, which is not 0.
  DWS_KERNEL uint32_t Threshold(uint32_t c) const {
    return static_cast<uint32_t>(thresholds >> (8 * (c - 1))) & 0xFF;
  }
};

// Scratch of one warp; in shared memory on the device. Every block fills it again.
struct ClassScratch {
  BlockTable table;
  GapStream ranks[kClassesMax];
  uint32_t hot;                // changes of the block that are hot,
  uint32_t hot_bits;           // and the sum of their widths
  uint32_t left[kClassesMax];  // ranks that were not in a window yet
  uint16_t window[kClassesMax][Warp::kLanes];
  uint32_t at[kClassesMax];    // the place of the next rank in the window
  uint32_t size[kClassesMax];  // of the window
  // Bit i: element i of one class in one row changes. Zero between two classes, and after them two
  // words that stay zero: reading 32 bits from any bit on needs them.
  uint32_t changes[kRowElementsMax / 32 + 2];
};

// The Rice parameter of a hot element.
template <typename Bits>
DWS_KERNEL uint32_t HotWidth(const BlockTable& table, uint32_t magnitude) {
  constexpr int32_t kWidthMax = kElementBits<Bits> - 1 < 15 ? kElementBits<Bits> - 1 : 15;
  const int32_t width = table.hot_scale - static_cast<int32_t>(magnitude);
  return static_cast<uint32_t>(width < 0 ? 0 : width < kWidthMax ? width : kWidthMax);
}

// Shifts `coded` for the block, into the scratch memory. False: a number is out of range.
template <typename Bits>
DWS_KERNEL bool OpenTable(const StageTask<Bits>& task, const KernelClassTable& coded,
                          ClassScratch& scratch) {
  constexpr int32_t kByteMax = sizeof(Bits) == 1 ? 0x7F : 0xFF;
  const int32_t shift = static_cast<int32_t>(task.parameters >> 12) - 8;
  const uint32_t count = coded.threshold_count;
  if (!task.is_float || count >= kClassesMax) return false;
  bool reachable = coded.hot_below <= kByteMax && coded.hot_scale <= kByteMax;
  BlockTable table = {coded.hot_below + shift, coded.hot_scale + shift, count + 1, 0};
  reachable = reachable && table.hot_below >= 0 && table.hot_below <= kByteMax;
  reachable = reachable && table.hot_scale >= 0 && table.hot_scale <= kByteMax;
  for (uint32_t i = 0; i < count; ++i) {
    const int32_t moved = coded.thresholds[i] + shift;
    reachable = reachable && coded.thresholds[i] <= kByteMax && moved >= 1 && moved <= kByteMax;
    table.thresholds |= uint64_t{static_cast<uint8_t>(moved)} << (8 * i);
  }
  task.warp.lanes([&](uint32_t lane) {
    if (lane != 0) return;
    scratch.table = table;
    scratch.hot = scratch.hot_bits = 0;
  });
  task.warp.Sync();
  return reachable;
}

// The first bits of the planes after the heads.
struct ClassPlanes {
  uint32_t signs = 0;
  uint32_t sizes = 0;     // of hot changes
  uint32_t inverted = 0;  // a bit for each class
};

// Reads the heads and opens the rank streams of all classes. False: damaged.
template <typename Bits>
DWS_KERNEL bool OpenClasses(const StageTask<Bits>& task, uint32_t class_count,
                            ClassScratch& scratch, ClassPlanes& planes) {
  const Warp& warp = task.warp;
  const uint32_t count_bits = (task.parameters & 0xF) + 1;
  const uint32_t head_bits = count_bits + 5;
  const uint32_t heads_end = class_count * head_bits;
  if (heads_end > task.payload.bits()) return false;
  Vec<uint32_t> counts;
  Vec<uint32_t> ks;
  Vec<uint32_t> inverted;
  Vec<uint32_t> bad;
  Vec<uint32_t> remainder_bits;
  warp.lanes([&](uint32_t lane) {
    if (lane >= class_count) return;
    const auto head = static_cast<uint32_t>(task.payload.Number(lane * head_bits, head_bits));
    counts[lane] = head & static_cast<uint32_t>(LowBits(count_bits));
    ks[lane] = head >> count_bits & 0xF;
    inverted[lane] = head >> (count_bits + 4);
    bad[lane] = counts[lane] > task.elements || (counts[lane] == 0 && ks[lane] != 0) ? 1 : 0;
    remainder_bits[lane] = counts[lane] * ks[lane];
  });
  if (warp.Ballot(bad) != 0 || BitWidth(Union(warp, counts) | 1) != count_bits) return false;
  planes.inverted = warp.Ballot(inverted);
  const Vec<uint32_t> ends = RunningSum(warp, remainder_bits);
  planes.signs = heads_end + warp.Broadcast(ends, Warp::kLanes - 1);
  uint32_t quotients = planes.signs + task.nnz;
  if (quotients > task.payload.bits()) return false;
  for (uint32_t c = 0; c < class_count; ++c) {
    const uint32_t begin = quotients;
    quotients = SkipOnes(warp, task.payload, begin, warp.Broadcast(counts, c));
    if (quotients == kCutOff) return false;
    warp.lanes([&](uint32_t lane) {
      if (lane != c) return;
      scratch.ranks[c] = {heads_end + ends[lane] - remainder_bits[lane], begin, ks[lane], 0};
      scratch.left[c] = counts[lane];
    });
  }
  planes.sizes = quotients;
  warp.Sync();
  return true;
}

// Reads the next ranks of class `c` into its window. False: damaged.
template <typename Bits>
DWS_KERNEL bool FillWindow(const StageTask<Bits>& task, uint32_t c, ClassScratch& scratch) {
  const Warp& warp = task.warp;
  warp.Sync();  // all lanes are done with the old window
  GapStream stream = scratch.ranks[c];
  const uint32_t left = scratch.left[c];
  const uint32_t size = left < Warp::kLanes ? left : Warp::kLanes;
  Vec<uint32_t> ranks;
  if (size != 0 && !NextNumbers(warp, task.payload, size, task.elements, stream, ranks)) {
    return false;
  }
  warp.Sync();  // all lanes have read the stream's old position
  warp.lanes([&](uint32_t lane) {
    scratch.window[c][lane] = static_cast<uint16_t>(ranks[lane]);
    if (lane != 0) return;
    scratch.ranks[c] = stream;
    scratch.left[c] = left - size;
    scratch.at[c] = 0;
    scratch.size[c] = size;
  });
  warp.Sync();
  return true;
}

}  // namespace dws::cuda::kernels
