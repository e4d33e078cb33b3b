// The ranks of class-split that lie in one row of the sweep (class_sweep.h). They are distributed
// to the lanes, four of each class. Each lane finds the owner of its rank, the lane that has the
// element, and marks the element there.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/class_heads.h"
#include "common/memory/cuda/kernels/class_sweep.h"
#include "common/memory/cuda/kernels/stage_task.h"

namespace dws::cuda::kernels {

// Bit 4e of the element e that is number `n` (from 0) of class `c` in a lane with more than n of
// them.
DWS_KERNEL uint32_t MemberNumber(uint32_t classes, uint32_t c, uint32_t n) {
  const uint32_t members = MembersOf(classes, c);
  const uint32_t numbers = members * 0x11111111;  // 4 bits for each element: members up to it
  return members & MembersOf(numbers, n + 1);
}

// The last lane with at most `rank` elements of class `c` before it. If the row has the element
// with that rank, this lane has it.
DWS_KERNEL uint32_t OwnerOf(const ClassScratch& scratch, uint32_t c, uint32_t rank) {
  uint32_t owner = 0;
  DWS_UNROLL
  for (uint32_t by = Warp::kLanes / 2; by != 0; by /= 2) {
    if (CountOf(scratch.below[owner + by], c) <= rank) owner += by;
  }
  return owner;
}

// Refills the windows that are used up and loads the next ranks of all classes. False: damaged.
template <typename Bits>
DWS_KERNEL bool NextRanks(const StageTask<Bits>& task, ClassScratch& scratch, Sweep& sweep) {
  const Warp& warp = task.warp;
  Vec<uint32_t> used_up;
  warp.lanes([&](uint32_t lane) {
    used_up[lane] = sweep.size[lane] != 0 && sweep.at[lane] == sweep.size[lane] ? 1 : 0;
  });
  uint32_t classes = warp.Ballot(used_up) & ((1U << kClassesMax) - 1);
  for (; classes != 0; classes &= classes - 1) {
    const uint32_t c = LowestOne(classes);
    uint32_t size = 0;
    if (!FillWindow(task, c, scratch, size)) return false;
    warp.lanes([&](uint32_t lane) {
      if (lane % kClassesMax != c) return;
      sweep.at[lane] = 0;
      sweep.size[lane] = size;
    });
  }
  warp.lanes([&](uint32_t lane) {
    const uint32_t at = sweep.at[lane] + lane / kClassesMax;
    sweep.next[lane] = at < sweep.size[lane] ? scratch.window[lane % kClassesMax][at] : kNoRank;
  });
  return true;
}

// A bit for each lane: whether its rank lies in this row.
DWS_KERNEL uint32_t RanksHere(const Warp& warp, const Sweep& sweep, const ClassifiedRow& row) {
  Vec<uint32_t> here;
  warp.lanes([&](uint32_t lane) { here[lane] = sweep.next[lane] < row.ends[lane] ? 1 : 0; });
  return warp.Ballot(here);
}

// Marks the elements whose ranks lie in this row, up to four of each class at a time. False:
// damaged.
template <typename Bits>
DWS_KERNEL bool MarkRanks(const StageTask<Bits>& task, ClassScratch& scratch, Sweep& sweep,
                          ClassifiedRow& row) {
  constexpr uint32_t kOfClass = 0x01010101;  // lanes of class 0
  const Warp& warp = task.warp;
  uint32_t taken = RanksHere(warp, sweep, row);
  if (taken == 0) return true;
  warp.lanes([&](uint32_t lane) { scratch.below[lane] = row.below[lane]; });
  warp.Sync();
  while (taken != 0) {
    Vec<uint32_t> owners;
    warp.lanes([&](uint32_t lane) {
      const uint32_t rank = sweep.next[lane] - sweep.seen[lane];
      owners[lane] = OwnerOf(scratch, lane % kClassesMax, rank);
    });
    const Vec<uint32_t> classes = warp.Shuffle(row.classes, owners);
    warp.lanes([&](uint32_t lane) {
      const uint32_t c = lane % kClassesMax;
      sweep.at[lane] += PopCount(taken & kOfClass << c);
      if ((taken >> lane & 1) == 0) return;
      const uint32_t owner = owners[lane];
      const uint32_t number =
          sweep.next[lane] - sweep.seen[lane] - CountOf(scratch.below[owner], c);
      SetBits(scratch.marks[owner], MemberNumber(classes[lane], c, number));
    });
    if (!NextRanks(task, scratch, sweep)) return false;
    taken = RanksHere(warp, sweep, row);
  }
  warp.Sync();
  warp.lanes([&](uint32_t lane) {
    row.marks[lane] ^= scratch.marks[lane];
    scratch.marks[lane] = 0;
  });
  return true;
}

}  // namespace dws::cuda::kernels
