// The sweep of class-split over the old elements of a block: from ranks inside classes to positions
// (common/delta/FORMAT.md, mode 3). Reads the whole block once, in order, and keeps the position
// and the old value of each change.
//
// A row is what the warp loads at once: up to 8 elements for each lane. Each lane counts its
// elements by class, eight counts of 8 bits side by side. So one running sum over the lanes gives,
// for every class, the number of its elements in the row before each lane. From that follows which
// lane has the element of a rank (class_ranks.h).
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/class_heads.h"
#include "common/memory/cuda/kernels/collectives.h"
#include "common/memory/cuda/kernels/stage_task.h"

namespace dws::cuda::kernels {

// Elements of a lane in one row: 16 bytes, and at most 8.
template <typename Bits>
inline constexpr uint32_t kLaneElements = sizeof(Bits) == 1 ? 8 : 16 / sizeof(Bits);
template <typename Bits>
inline constexpr uint32_t kRowElements = kLaneElements<Bits>* Warp::kLanes;

template <typename Bits>
struct Row {
  Vec<uint64_t> low;   // the first 8 bytes of each lane
  Vec<uint64_t> high;  // the rest
};

// The state of the sweep. Values of class c are in the four lanes c, c + 8, c + 16 and c + 24.
struct Sweep {
  Vec<uint32_t> seen;  // elements of the class before this row
  Vec<uint32_t> at;    // the place of its next rank in the window
  Vec<uint32_t> size;  // of the window; 0: there are no more ranks
  Vec<uint32_t> next;  // in the first of these lanes the next rank, in the second the one after it,
                       // and so on; kNoRank: the window has none
  uint32_t changes = 0;
  Vec<uint32_t> hot;       // hot changes of each lane,
  Vec<uint32_t> hot_bits;  // and the sum of their widths
};

// One classified row. Bits 4e to 4e+3 belong to the lane's element e.
struct ClassifiedRow {
  Vec<uint32_t> classes;  // 8 where there is no element
  Vec<uint64_t> counts;   // by class, at ClassShift
  Vec<uint64_t> below;    // the same, summed over all lanes before
  Vec<uint32_t> ends;     // in lanes as in Sweep: elements of the class up to the end of this row
  Vec<uint32_t> marks;    // bit 4e: element e changes
};

// The first bit of the count of class `c` in eight counts of 8 bits.
DWS_KERNEL uint32_t ClassShift(uint32_t c) { return (c & 1) * 32 + c / 2 * 8; }

// The count of class `c` of eight counts in memory, little-endian.
DWS_KERNEL uint32_t CountOf(const uint64_t& counts, uint32_t c) {
  return reinterpret_cast<const uint8_t*>(&counts)[ClassShift(c) / 8];
}

template <typename Bits>
DWS_KERNEL void LoadRow(const StageTask<Bits>& task, uint32_t begin, Row<Bits>& row) {
  constexpr uint32_t kBytes = kLaneElements<Bits> * sizeof(Bits);
  task.warp.lanes([&](uint32_t lane) {
    const uint32_t position = begin + lane * kLaneElements<Bits>;
    if (position >= task.elements) return;
    uint64_t address = 0;
    if (task.place.SideBySide(position, kLaneElements<Bits>, kBytes, &address)) {
      if constexpr (kBytes == 8) {
        row.low[lane] = Load<uint64_t>(address);
      } else {
        const auto pair = Load<WordPair>(address);
        row.low[lane] = pair.low;
        row.high[lane] = pair.high;
      }
      return;
    }
    const uint32_t number = position / kWordElements<Bits>;
    row.low[lane] = task.place.LoadWord(number);
    if (kBytes > 8 && number + 1 < task.place.words()) {
      row.high[lane] = task.place.LoadWord(number + 1);
    }
  });
}

// Memory is prefetched in batches of one sector for each lane: a warp has too few registers for as
// many loads at a time as keep memory busy.
inline constexpr uint32_t kSectorBytes = 32;
inline constexpr uint32_t kBatchesAhead = 3;
template <typename Bits>
inline constexpr uint32_t kBatchElements = kSectorBytes / sizeof(Bits) * Warp::kLanes;

template <typename Bits>
DWS_KERNEL void FetchBatch(const StageTask<Bits>& task, uint32_t begin) {
  task.warp.lanes([&](uint32_t lane) {
    const uint32_t position = begin + lane * (kSectorBytes / sizeof(Bits));
    if (position < task.elements) Fetch(task.place.Address(position));
  });
}

template <typename Bits>
DWS_KERNEL Bits RowElement(const Row<Bits>& row, uint32_t lane, uint32_t e) {
  constexpr uint32_t kElements = kWordElements<Bits>;
  return ElementOf<Bits>(e < kElements ? row.low[lane] : row.high[lane], e % kElements);
}

// Computes classes and counts by class of one lane's elements, of which the block has `count`.
template <typename Bits>
DWS_KERNEL void ClassifyLane(const Row<Bits>& row, uint32_t lane, uint32_t count,
                             const ClassScratch& scratch, ClassifiedRow& out) {
  uint32_t classes = 0;
  uint32_t nibbles = 0;  // the lane's count of each class, 4 bits
  DWS_UNROLL
  for (uint32_t e = 0; e < kLaneElements<Bits>; ++e) {
    const uint32_t c = scratch.class_of[MagnitudeByte(RowElement(row, lane, e))];
    const bool exists = e < count;
    classes |= (exists ? c : 8) << (4 * e);
    nibbles += exists ? 1U << (4 * c) : 0;
  }
  out.classes[lane] = classes;
  out.counts[lane] = (nibbles & 0x0F0F0F0F) | uint64_t{nibbles >> 4 & 0x0F0F0F0F} << 32;
}

template <typename Bits>
DWS_KERNEL void Classify(const StageTask<Bits>& task, const Row<Bits>& row, uint32_t begin,
                         const ClassScratch& scratch, const Sweep& sweep, ClassifiedRow& out) {
  constexpr uint32_t kElements = kLaneElements<Bits>;
  const Warp& warp = task.warp;
  warp.lanes([&](uint32_t lane) {
    if (begin + kRowElements<Bits> <= task.elements) {  // a whole row
      ClassifyLane(row, lane, kElements, scratch, out);
      return;
    }
    const uint32_t position = begin + lane * kElements;
    const uint32_t count = position < task.elements ? task.elements - position : 0;
    ClassifyLane(row, lane, count, scratch, out);
  });
  out.below = RunningSum(warp, out.counts);
  // The sum of a class up to the last lane may be 256 and overflow into the next count. The sum
  // before the last lane cannot.
  warp.lanes([&](uint32_t lane) { out.below[lane] -= out.counts[lane]; });
  const uint64_t below = warp.Broadcast(out.below, Warp::kLanes - 1);
  const uint64_t last = warp.Broadcast(out.counts, Warp::kLanes - 1);
  warp.lanes([&](uint32_t lane) {
    const uint32_t shift = ClassShift(lane % kClassesMax);
    out.ends[lane] = sweep.seen[lane] + static_cast<uint32_t>(below >> shift & 0xFF) +
                     static_cast<uint32_t>(last >> shift & 0xFF);
  });
}

// Bit 4e for each element e of class `c`.
DWS_KERNEL uint32_t MembersOf(uint32_t classes, uint32_t c) {
  const uint32_t other = classes ^ c * 0x11111111;
  return ~(other | other >> 1 | other >> 2 | other >> 3) & 0x11111111;
}

// Marks all elements of the inverted classes. Their ranks then unmark elements.
template <typename Bits>
DWS_KERNEL void MarkInverted(const StageTask<Bits>& task, uint32_t inverted, ClassifiedRow& row) {
  for (; inverted != 0; inverted &= inverted - 1) {
    const uint32_t c = LowestOne(inverted);
    // Of wide types a lane has fewer than 8 elements: without the mask the missing ones would count
    // as class 0.
    constexpr auto kPresent = static_cast<uint32_t>(LowBits(kLaneElements<Bits> * 4));
    task.warp.lanes(
        [&](uint32_t lane) { row.marks[lane] |= MembersOf(row.classes[lane], c) & kPresent; });
  }
}

}  // namespace dws::cuda::kernels
