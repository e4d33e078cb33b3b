// Stages blocks that list their changes: raw and split-Rice (common/delta/FORMAT.md, modes 1 and
// 2); and exceptions, which class-split has as well.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/gap_stream.h"
#include "common/memory/cuda/kernels/stage_finish.h"
#include "common/memory/cuda/kernels/stage_task.h"
#include "common/memory/cuda/kernels/value_stream.h"

namespace dws::cuda::kernels {

// Mode 1. False: damaged.
template <typename Bits>
DWS_KERNEL bool StageRaw(const StageTask<Bits>& task, KernelDigest& difference) {
  const Warp& warp = task.warp;
  const uint32_t values = task.nnz * 16;
  if (task.parameters != 0 || task.payload.bits() != values + task.nnz * kElementBits<Bits>) {
    return false;
  }
  uint32_t next = 0;  // the smallest possible value of the next position
  for (uint32_t begin = 0; begin < task.nnz; begin += Warp::kLanes) {
    const uint32_t count = task.Round(begin);
    Vec<uint32_t> positions;
    warp.lanes([&](uint32_t lane) {
      if (lane >= count) return;
      const uint32_t change = begin + lane;
      positions[lane] = static_cast<uint32_t>(task.payload.Number(change * 16, 16));
      Store<uint16_t>(task.PositionAt(change), static_cast<uint16_t>(positions[lane]));
      Store<Bits>(task.ValueAt(change),
                  static_cast<Bits>(task.payload.Number(values + change * kElementBits<Bits>,
                                                        kElementBits<Bits>)));
    });
    const Vec<uint32_t> below = warp.FromBelow(positions, 1);
    Vec<uint32_t> bad;
    warp.lanes([&](uint32_t lane) {
      if (lane >= count) return;
      const uint32_t least = lane == 0 ? next : below[lane] + 1;
      bad[lane] = positions[lane] < least || positions[lane] >= task.elements ? 1 : 0;
    });
    if (warp.Ballot(bad) != 0) return false;
    next = warp.Broadcast(positions, count - 1) + 1;
  }
  difference = FinishSparse(task, Known::kValues, 0);
  return true;
}

// The planes of exceptions, ready to read.
struct ExceptionStreams {
  uint32_t count = 0;
  GapStream numbers = {};
  ValueStream magnitudes;  // |step| - 2
};

// False: their header or a plane is damaged.
template <typename Bits>
DWS_KERNEL bool OpenExceptions(const StageTask<Bits>& task, uint32_t begin,
                               ExceptionStreams& streams) {
  constexpr uint32_t kHeaderBits = 16 + 4 + 15;
  const uint32_t bits = task.payload.bits();
  if (begin + kHeaderBits > bits) return false;
  const uint64_t header = task.payload.Number(begin, kHeaderBits);
  streams.count = static_cast<uint32_t>(header & 0xFFFF) + 1;
  const uint32_t k = static_cast<uint32_t>(header >> 16) & 0xF;
  if (streams.count > task.nnz ||
      !UnpackValueCoding(static_cast<uint32_t>(header >> 20), kElementBits<Bits>,
                         streams.magnitudes.coding)) {
    return false;
  }
  const uint32_t remainders = begin + kHeaderBits;
  const uint32_t magnitudes = remainders + streams.count * k;
  const uint32_t quotients = magnitudes + streams.count * streams.magnitudes.coding.width;
  if (quotients > bits) return false;
  streams.numbers = {remainders, quotients, k, 0};
  const uint32_t numbers_end = SkipOnes(task.warp, task.payload, quotients, streams.count);
  return numbers_end != kCutOff && OpenValues(task.warp, task.payload, magnitudes, numbers_end,
                                              streams.count, streams.magnitudes);
}

// Reads the exceptions from bit `begin` on and replaces their staged steps. An exception whose
// element has a magnitude byte below `hot_below` is damage. Returns the end of the last plane;
// kCutOff: damaged.
template <typename Bits>
DWS_KERNEL uint32_t StageExceptions(const StageTask<Bits>& task, uint32_t begin, uint32_t signs,
                                    uint32_t hot_below) {
  const Warp& warp = task.warp;
  ExceptionStreams streams;
  if (!OpenExceptions(task, begin, streams)) return kCutOff;
  warp.Sync();
  for (uint32_t done = 0; done < streams.count; done += Warp::kLanes) {
    const uint32_t count =
        streams.count - done < Warp::kLanes ? streams.count - done : Warp::kLanes;
    Vec<uint32_t> numbers;
    Vec<uint64_t> magnitudes;
    if (!NextNumbers(warp, task.payload, count, task.nnz, streams.numbers, numbers) ||
        !NextValues(warp, task.payload, count, streams.magnitudes, magnitudes)) {
      return kCutOff;
    }
    Vec<uint32_t> bad;
    warp.lanes([&](uint32_t lane) {
      if (lane >= count) return;
      const bool negative = task.payload.Number(signs + numbers[lane], 1) != 0;
      const uint64_t magnitude = magnitudes[lane] + 2;
      bad[lane] = magnitude < 2 || !IsStep<Bits>(magnitude, negative) ? 1 : 0;
      if (hot_below != 0) {
        const uint32_t position = Load<uint16_t>(task.PositionAt(numbers[lane]));
        const Bits old = Load<Bits>(task.place.Address(position));
        if (MagnitudeByte(old) < hot_below) bad[lane] = 1;
      }
      Store<Bits>(task.ValueAt(numbers[lane]), SignedStep<Bits>(magnitude, negative));
    });
    if (warp.Ballot(bad) != 0) return kCutOff;
  }
  return ValuesEnd(warp, streams.magnitudes);
}

// The planes of split-Rice that contain every change.
struct RicePlanes {
  GapStream gaps = {};
  uint32_t signs = 0;
};

// Stages the positions of the round that begins with change `begin`, and reads its steps as if none
// were an exception. False: damaged.
template <typename Bits>
DWS_KERNEL bool NextRice(const StageTask<Bits>& task, uint32_t begin, RicePlanes& planes,
                         Changes<Bits>& changes) {
  const uint32_t count = task.Round(begin);
  const uint32_t negative = task.payload.HalfWord(planes.signs + begin);
  if (!NextNumbers(task.warp, task.payload, count, task.elements, planes.gaps, changes.positions)) {
    return false;
  }
  task.warp.lanes([&](uint32_t lane) {
    if (lane >= count) return;
    changes.known[lane] = SignedStep<Bits>(1, (negative >> lane & 1) != 0);
    Store<uint16_t>(task.PositionAt(begin + lane), static_cast<uint16_t>(changes.positions[lane]));
  });
  return true;
}

// Without exceptions a single pass is enough: a round's live words are loaded while the next round
// is read.
template <typename Bits>
DWS_KERNEL bool StageUnitSteps(const StageTask<Bits>& task, RicePlanes& planes,
                               KernelDigest& difference) {
  Finish finish;
  Changes<Bits> next;
  if (!NextRice(task, 0, planes, next)) return false;
  LoadLive(task, 0, next);
  for (uint32_t begin = 0; begin < task.nnz; begin += Warp::kLanes) {
    const Changes<Bits> changes = next;
    if (task.nnz - begin > Warp::kLanes) {
      if (!NextRice(task, begin + Warp::kLanes, planes, next)) return false;
      LoadLive(task, begin + Warp::kLanes, next);
    }
    FinishRound(task, changes, Known::kSteps, begin, finish);
  }
  if (!task.payload.EndsCleanly(planes.gaps.quotients)) return false;
  difference = SumDigests(task.warp, finish.sums);
  return true;
}

// Mode 2. False: damaged.
template <typename Bits>
DWS_KERNEL bool StageSplitRice(const StageTask<Bits>& task, KernelDigest& difference) {
  constexpr uint32_t kExceptions = 1U << 4;
  const uint32_t k = task.parameters & 0xF;
  const uint32_t signs = task.nnz * k;
  RicePlanes planes = {.gaps = {0, signs + task.nnz, k, 0}, .signs = signs};
  if (task.parameters >= 2 * kExceptions || planes.gaps.quotients > task.payload.bits()) {
    return false;
  }
  if ((task.parameters & kExceptions) == 0) return StageUnitSteps(task, planes, difference);
  for (uint32_t begin = 0; begin < task.nnz; begin += Warp::kLanes) {
    Changes<Bits> changes;
    if (!NextRice(task, begin, planes, changes)) return false;
    const uint32_t count = task.Round(begin);
    task.warp.lanes([&](uint32_t lane) {
      if (lane < count) Store<Bits>(task.ValueAt(begin + lane), changes.known[lane]);
    });
  }
  const uint32_t end = StageExceptions(task, planes.gaps.quotients, signs, 0);
  if (!task.payload.EndsCleanly(end)) return false;
  difference = FinishSparse(task, Known::kSteps, signs);
  return true;
}

}  // namespace dws::cuda::kernels
