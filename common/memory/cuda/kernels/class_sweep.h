// The sweep of class-split over the old elements of a block, which converts ranks inside classes to
// positions (common/delta/FORMAT.md, mode 3). Reads the whole block once, in order, and keeps the
// position and the old value of each change.
//
// The warp classifies one row at a time: up to 32 neighbouring elements for each lane, one bit of a
// mask for each. For each class
//   1. the lanes compare their elements with its threshold, and count its members;
//   2. the ranks that lie in this row become bits of a map, one for each member in the row;
//   3. each lane takes its members' bits out of the map and marks the elements whose bit is set.
// So there is little work for each element, and the rest depends on the number of changes.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/class_heads.h"
#include "common/memory/cuda/kernels/class_row.h"
#include "common/memory/cuda/kernels/collectives.h"
#include "common/memory/cuda/kernels/stage_task.h"

namespace dws::cuda::kernels {

static_assert(kRowElements<uint8_t> <= kRowElementsMax &&
              kRowElements<uint16_t> <= kRowElementsMax);

// The state of the sweep. Values of class c are in lane c.
struct Sweep {
  Vec<uint32_t> seen;  // elements of the class before this row
  Vec<uint32_t> next;  // its next rank; kNoRank: there are no more
  uint32_t changes = 0;
};

// Fills the window of class `c`, which is used up. False: damaged.
template <typename Bits>
DWS_KERNEL bool NextRanks(const StageTask<Bits>& task, uint32_t c, ClassScratch& scratch,
                          Sweep& sweep) {
  if (!FillWindow(task, c, scratch)) return false;
  task.warp.lanes([&](uint32_t lane) {
    if (lane == c) sweep.next[lane] = scratch.size[c] == 0 ? kNoRank : scratch.window[c][0];
  });
  return true;
}

// Step 2: maps the ranks of class `c` from `seen` to before `end`. There is at least one. Returns
// false if the block is damaged.
template <typename Bits>
DWS_KERNEL bool MapRanks(const StageTask<Bits>& task, uint32_t c, uint32_t seen, uint32_t end,
                         ClassScratch& scratch, Sweep& sweep) {
  const Warp& warp = task.warp;
  do {
    const uint32_t at = scratch.at[c];
    const uint32_t size = scratch.size[c];
    Vec<uint32_t> here;
    warp.lanes([&](uint32_t lane) {
      if (lane < at || lane >= size) return;
      const uint32_t rank = scratch.window[c][lane];
      if (rank >= end) return;
      here[lane] = 1;
      SetBits(scratch.changes[(rank - seen) / 32], 1U << (rank - seen) % 32);
    });
    const uint32_t next = at + PopCount(warp.Ballot(here));
    if (next == size) {
      if (!NextRanks(task, c, scratch, sweep)) return false;
      continue;
    }
    warp.Sync();  // all lanes have read the old place
    warp.lanes([&](uint32_t lane) {
      if (lane != c) return;
      scratch.at[c] = next;
      sweep.next[lane] = scratch.window[c][next];
    });
  } while (warp.Broadcast(sweep.next, c) < end);
  warp.Sync();
  return true;
}

// Step 3: flips in `marks` the bits of the members that the map names, and empties the map.
// `counts` is the number of members of each lane.
DWS_KERNEL void TakeChanges(const Warp& warp, const Vec<uint32_t>& members,
                            const Vec<uint32_t>& counts, ClassScratch& scratch,
                            Vec<uint32_t>& marks) {
  const Vec<uint32_t> ends = RunningSum(warp, counts);
  warp.lanes([&](uint32_t lane) {
    const uint32_t before = ends[lane] - counts[lane];
    uint32_t changed =
        FunnelRight(scratch.changes[before / 32], scratch.changes[before / 32 + 1], before) &
        static_cast<uint32_t>(LowBits(counts[lane]));
    for (; changed != 0; changed &= changed - 1) {
      marks[lane] ^= 1U << SelectOne(members[lane], LowestOne(changed));
    }
  });
  warp.Sync();
  warp.lanes([&](uint32_t lane) { scratch.changes[lane] = 0; });
  warp.Sync();
}

// Marks the elements of the row that change: bit e of a lane for its element e. False: damaged.
template <typename Bits>
DWS_KERNEL bool MarkRow(const StageTask<Bits>& task, const BlockTable& table, uint32_t inverted,
                        uint32_t begin, const Row<Bits>& row, ClassScratch& scratch, Sweep& sweep,
                        Vec<uint32_t>& marks) {
  constexpr uint32_t kElements = kLaneElements<Bits>;
  const Warp& warp = task.warp;
  Vec<uint32_t> reached;  // elements of this class and of classes above it
  warp.lanes([&](uint32_t lane) {
    const uint32_t position = begin + lane * kElements;
    const uint32_t left = position < task.elements ? task.elements - position : 0;
    reached[lane] = static_cast<uint32_t>(LowBits(left < kElements ? left : kElements));
  });
  for (uint32_t c = 0; c < table.class_count; ++c) {
    Vec<uint32_t> members = reached;
    if (c + 1 < table.class_count) {
      warp.lanes([&](uint32_t lane) {
        reached[lane] &= Reach(row, lane, table.Threshold(c + 1));
        members[lane] &= ~reached[lane];
      });
    }
    Vec<uint32_t> counts;
    warp.lanes([&](uint32_t lane) { counts[lane] = PopCount(members[lane]); });
    const uint32_t seen = warp.Broadcast(sweep.seen, c);
    const uint32_t end = seen + warp.Total(counts);
    warp.lanes([&](uint32_t lane) {
      if (lane == c) sweep.seen[lane] = end;
      if ((inverted >> c & 1) != 0) marks[lane] |= members[lane];
    });
    if (warp.Broadcast(sweep.next, c) >= end) continue;
    if (!MapRanks(task, c, seen, end, scratch, sweep)) return false;
    TakeChanges(warp, members, counts, scratch, marks);
  }
  return true;
}

}  // namespace dws::cuda::kernels
