// Stages class-split blocks (common/delta/FORMAT.md, mode 3): the sweep finds positions and old
// values; these and the planes of sizes give the steps; the rest is as for other sparse blocks.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/class_heads.h"
#include "common/memory/cuda/kernels/class_steps.h"
#include "common/memory/cuda/kernels/class_sweep.h"
#include "common/memory/cuda/kernels/stage_finish.h"
#include "common/memory/cuda/kernels/stage_sparse.h"
#include "common/memory/cuda/kernels/stage_task.h"

namespace dws::cuda::kernels {

// Stages the position and old value of each change of the row. False: there are more than nnz.
template <typename Bits>
DWS_KERNEL bool StageMarks(const StageTask<Bits>& task, const BlockTable& table, uint32_t begin,
                           const Vec<uint32_t>& marks, ClassScratch& scratch, Sweep& sweep) {
  const Warp& warp = task.warp;
  if (warp.Ballot(marks) == 0) return true;
  Vec<uint32_t> counts;
  warp.lanes([&](uint32_t lane) { counts[lane] = PopCount(marks[lane]); });
  const Vec<uint32_t> ends = RunningSum(warp, counts);
  const uint32_t all = warp.Broadcast(ends, Warp::kLanes - 1);
  if (sweep.changes + all > task.nnz) return false;
  warp.lanes([&](uint32_t lane) {
    uint32_t change = sweep.changes + ends[lane] - counts[lane];
    for (uint32_t left = marks[lane]; left != 0; left &= left - 1, ++change) {
      const uint32_t position = begin + lane * kLaneElements<Bits> + LowestOne(left);
      const Bits old = Load<Bits>(task.place.Address(position));
      Store<uint16_t>(task.PositionAt(change), static_cast<uint16_t>(position));
      Store<Bits>(task.ValueAt(change), old);
      const uint32_t byte = MagnitudeByte(old);
      if (static_cast<int32_t>(byte) >= table.hot_below) continue;
      AddTo(scratch.hot, 1);
      AddTo(scratch.hot_bits, HotWidth<Bits>(table, byte));
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
  for (uint32_t i = 0; i < kRowsAhead; ++i) FetchRow(task, i * kRowElements<Bits>);
  warp.lanes([&](uint32_t lane) {
    sweep.next[lane] = kNoRank;
    for (uint32_t i = lane; i < kRowElementsMax / 32 + 2; i += Warp::kLanes) scratch.changes[i] = 0;
  });
  for (uint32_t c = 0; c < table.class_count; ++c) {
    if (!NextRanks(task, c, scratch, sweep)) return false;
  }
  for (uint32_t begin = 0; begin < task.elements; begin += kRowElements<Bits>) {
    Row<Bits> row;
    LoadRow(task, begin, row);
    FetchRow(task, begin + kRowsAhead * kRowElements<Bits>);
    Vec<uint32_t> marks;
    if (!MarkRow(task, table, inverted, begin, row, scratch, sweep, marks) ||
        !StageMarks(task, table, begin, marks, scratch, sweep)) {
      return false;
    }
  }
  // A rank that is left is beyond its class.
  Vec<uint32_t> left;
  warp.Sync();
  warp.lanes([&](uint32_t lane) { left[lane] = sweep.next[lane] != kNoRank ? 1 : 0; });
  return warp.Ballot(left) == 0 && sweep.changes == task.nnz;
}

// Mode 3. False: damaged.
template <typename Bits>
DWS_KERNEL bool StageClassSplit(const StageTask<Bits>& task, const KernelClassTable& coded,
                                ClassScratch& scratch, KernelDigest& difference) {
  constexpr uint32_t kExceptions = 1U << 4;
  const BlockTable& table = scratch.table;  // not in registers
  ClassPlanes planes;
  Sweep sweep;
  task.warp.Sync();  // all lanes are done with the previous block's scratch memory
  if (!OpenTable(task, coded, scratch) || !OpenClasses(task, table.class_count, scratch, planes) ||
      !SweepBlock(task, table, planes.inverted, scratch, sweep)) {
    return false;
  }
  const bool exceptions = (task.parameters & kExceptions) != 0;
  if (scratch.hot == 0 && !exceptions) {
    // All steps are +-1: there are no planes of sizes.
    if (EscapeWidth(task) != 0 || !task.payload.EndsCleanly(planes.sizes)) return false;
    difference = FinishSparse(task, Known::kSigns, planes.signs);
    return true;
  }
  uint32_t end = StageSteps(task, table, planes, scratch);
  if (end != kCutOff && exceptions) {
    end = StageExceptions(task, end, planes.signs, static_cast<uint32_t>(table.hot_below));
  }
  if (!task.payload.EndsCleanly(end)) return false;
  difference = FinishSparse(task, Known::kSteps, planes.signs);
  return true;
}

}  // namespace dws::cuda::kernels
