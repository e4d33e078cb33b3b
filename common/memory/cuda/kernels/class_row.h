// A row of the sweep of class-split (class_sweep.h): what the warp classifies at once, up to 32
// neighbouring elements for each lane.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/collectives.h"
#include "common/memory/cuda/kernels/stage_task.h"

namespace dws::cuda::kernels {

// Elements of a lane in one row: 64 bytes, and at most 32.
template <typename Bits>
inline constexpr uint32_t kLaneElements = sizeof(Bits) == 1 ? 32 : 64 / sizeof(Bits);
template <typename Bits>
inline constexpr uint32_t kLaneWords = kLaneElements<Bits> * sizeof(Bits) / 8;
template <typename Bits>
inline constexpr uint32_t kRowElements = kLaneElements<Bits>* Warp::kLanes;

template <typename Bits>
struct Row {
  Vec<uint64_t> words[kLaneWords<Bits>];
};

template <typename Bits>
DWS_KERNEL void LoadRow(const StageTask<Bits>& task, uint32_t begin, Row<Bits>& row) {
  constexpr uint32_t kElements = kLaneElements<Bits>;
  constexpr uint32_t kWords = kLaneWords<Bits>;
  task.warp.lanes([&](uint32_t lane) {
    const uint32_t position = begin + lane * kElements;
    uint64_t address = 0;
    if (task.place.SideBySide(position, kElements, 16, &address)) {
      DWS_UNROLL
      for (uint32_t i = 0; i < kWords; i += 2) {
        const auto pair = Load<WordPair>(address + uint64_t{i} * 8);
        row.words[i][lane] = pair.low;
        row.words[i + 1][lane] = pair.high;
      }
      return;
    }
    const uint32_t number = position / kWordElements<Bits>;
    DWS_UNROLL
    for (uint32_t i = 0; i < kWords; ++i) {
      row.words[i][lane] = number + i < task.place.words() ? task.place.LoadOneWord(number + i) : 0;
    }
  });
}

// Memory is prefetched some rows ahead, because a warp has too few registers for the number of
// loads that would keep memory busy.
inline constexpr uint32_t kSectorBytes = 32;
inline constexpr uint32_t kRowsAhead = 2;

template <typename Bits>
DWS_KERNEL void FetchRow(const StageTask<Bits>& task, uint32_t begin) {
  constexpr uint32_t kElements = kSectorBytes / sizeof(Bits);
  task.warp.lanes([&](uint32_t lane) {
    DWS_UNROLL
    for (uint32_t e = 0; e < kLaneElements<Bits>; e += kElements) {
      const uint32_t position = begin + lane * kLaneElements<Bits> + e;
      if (position < task.elements) Fetch(task.place.Address(position));
    }
  });
}

// Bit `to` of the result is bit `from` of `word`, both below 32; the others are zero.
DWS_KERNEL uint32_t MoveBit(uint32_t word, uint32_t from, uint32_t to) {
  return (from >= to ? word >> (from - to) : word << (to - from)) & 1U << to;
}

// Bit e: the magnitude byte of the lane's element e is at least `threshold`, which is not 0. All
// elements of a word are compared by one addition, which carries into their top bits.
template <typename Bits>
DWS_KERNEL uint32_t Reach(const Row<Bits>& row, uint32_t lane, uint32_t threshold) {
  constexpr uint32_t kBits = kElementBits<Bits>;
  constexpr uint32_t kMagnitudeBits = kBits == 8 ? 7 : 8;
  constexpr uint32_t kShift = kBits - 1 - kMagnitudeBits;
  constexpr uint64_t kEach = ~uint64_t{0} / LowBits(kBits);  // the lowest bit of each element
  constexpr uint64_t kMagnitudes = kEach * (LowBits(kMagnitudeBits) << kShift);
  const uint64_t add = kEach * (uint64_t{(1U << kMagnitudeBits) - threshold} << kShift);
  uint32_t reached = 0;
  DWS_UNROLL
  for (uint32_t i = 0; i < kLaneWords<Bits>; ++i) {
    const uint64_t sum = (row.words[i][lane] & kMagnitudes) + add;
    DWS_UNROLL
    for (uint32_t e = 0; e < kWordElements<Bits>; ++e) {
      const uint32_t top = e * kBits + kBits - 1;
      reached |= MoveBit(static_cast<uint32_t>(sum >> (top / 32 * 32)), top % 32,
                         i * kWordElements<Bits> + e);
    }
  }
  return reached;
}

}  // namespace dws::cuda::kernels
