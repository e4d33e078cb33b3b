// Stages class-split blocks (common/delta/FORMAT.md, mode 3): the sweep finds positions and old
// values; these and the planes of sizes give the steps; the rest is as for other sparse blocks.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/class_heads.h"
#include "common/memory/cuda/kernels/class_ranks.h"
#include "common/memory/cuda/kernels/class_steps.h"
#include "common/memory/cuda/kernels/class_sweep.h"
#include "common/memory/cuda/kernels/stage_finish.h"
#include "common/memory/cuda/kernels/stage_sparse.h"
#include "common/memory/cuda/kernels/stage_task.h"

namespace dws::cuda::kernels {

// Stages the position and old value of each change of the row. False: there are more than nnz.
template <typename Bits>
DWS_KERNEL bool StageMarks(const StageTask<Bits>& task, const BlockTable& table,
                           const Row<Bits>& loaded, uint32_t begin, const ClassifiedRow& row,
                           Sweep& sweep) {
  const Warp& warp = task.warp;
  const uint32_t busy = warp.Ballot(row.marks);
  if (busy == 0) return true;
  Vec<uint32_t> counts;
  Vec<uint32_t> several;
  warp.lanes([&](uint32_t lane) {
    counts[lane] = PopCount(row.marks[lane]);
    several[lane] = counts[lane] > 1 ? 1 : 0;
  });
  Vec<uint32_t> before;
  uint32_t all = PopCount(busy);
  if (warp.Ballot(several) == 0) {
    warp.lanes([&](uint32_t lane) { before[lane] = PopCount(Before(busy, lane)); });
  } else {
    before = RunningSum(warp, counts);
    all = warp.Broadcast(before, Warp::kLanes - 1);
    warp.lanes([&](uint32_t lane) { before[lane] -= counts[lane]; });
  }
  if (sweep.changes + all > task.nnz) return false;
  warp.lanes([&](uint32_t lane) {
    uint32_t change = sweep.changes + before[lane];
    for (uint32_t marks = row.marks[lane]; marks != 0; marks &= marks - 1, ++change) {
      const uint32_t e = LowestOne(marks) / 4;
      const uint32_t position = begin + lane * kLaneElements<Bits> + e;
      const Bits old = RowElement(loaded, lane, e);
      Store<uint16_t>(task.PositionAt(change), static_cast<uint16_t>(position));
      Store<Bits>(task.ValueAt(change), old);
      const uint32_t byte = MagnitudeByte(old);
      if (static_cast<int32_t>(byte) >= table.hot_below) continue;
      ++sweep.hot[lane];
      sweep.hot_bits[lane] += HotWidth<Bits>(table, byte);
    }
  });
  sweep.changes += all;
  return true;
}

// Sweeps over the whole block. False: damaged.
template <typename Bits>
DWS_KERNEL bool SweepBlock(const StageTask<Bits>& task, const BlockTable& table, uint32_t inverted,
                           ClassScratch& scratch, Sweep& sweep) {
  const Warp& warp = task.warp;
  warp.lanes([&](uint32_t lane) {
    scratch.marks[lane] = 0;
    // At the start every window counts as used up.
    sweep.at[lane] = sweep.size[lane] = lane % kClassesMax < table.class_count ? 1 : 0;
  });
  if (!NextRanks(task, scratch, sweep)) return false;
  Row<Bits> next;  // loaded in advance
  for (uint32_t i = 0; i < kBatchesAhead; ++i) FetchBatch(task, i * kBatchElements<Bits>);
  LoadRow(task, 0, next);
  for (uint32_t begin = 0; begin < task.elements; begin += kRowElements<Bits>) {
    const Row<Bits> loaded = next;
    if (begin % kBatchElements<Bits> == 0) {
      FetchBatch(task, begin + kBatchesAhead * kBatchElements<Bits>);
    }
    LoadRow(task, begin + kRowElements<Bits>, next);
    ClassifiedRow row;
    Classify(task, loaded, begin, scratch, sweep, row);
    if (inverted != 0) MarkInverted(task, inverted, row);
    if (!MarkRanks(task, scratch, sweep, row)) return false;
    if (!StageMarks(task, table, loaded, begin, row, sweep)) return false;
    warp.lanes([&](uint32_t lane) { sweep.seen[lane] = row.ends[lane]; });
  }
  // A rank that is left is beyond its class.
  Vec<uint32_t> left;
  warp.lanes([&](uint32_t lane) { left[lane] = sweep.next[lane] != kNoRank ? 1 : 0; });
  return warp.Ballot(left) == 0 && sweep.changes == task.nnz;
}

// Mode 3. False: damaged.
template <typename Bits>
DWS_KERNEL bool StageClassSplit(const StageTask<Bits>& task, const KernelClassTable& coded,
                                ClassScratch& scratch, KernelDigest& difference) {
  constexpr uint32_t kExceptions = 1U << 4;
  BlockTable table;
  ClassPlanes planes;
  Sweep sweep;
  task.warp.Sync();  // all lanes are done with the previous block's scratch memory
  if (!OpenTable(task, coded, scratch, table) ||
      !OpenClasses(task, table.class_count, scratch, planes) ||
      !SweepBlock(task, table, planes.inverted, scratch, sweep)) {
    return false;
  }
  uint32_t end = StageSteps(task, table, planes, sweep);
  if (end != kCutOff && (task.parameters & kExceptions) != 0) {
    end = StageExceptions(task, end, planes.signs, static_cast<uint32_t>(table.hot_below));
  }
  if (!task.payload.EndsCleanly(end)) return false;
  difference = FinishSparse(task, Known::kSteps, planes.signs);
  return true;
}

}  // namespace dws::cuda::kernels
