// Stages blocks that have every element: dense ulp and dense raw (common/delta/FORMAT.md, modes 4
// and 5).
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/collectives.h"
#include "common/memory/cuda/kernels/stage_task.h"
#include "common/memory/cuda/kernels/value_stream.h"
#include "common/memory/cuda/kernels/word_mix.h"
#include "common/memory/cuda/kernels/word_round.h"

namespace dws::cuda::kernels {

// The bits of word `number` that lie inside the block.
template <typename Bits>
DWS_KERNEL uint64_t WordMask(const StageTask<Bits>& task, uint32_t number) {
  return LowBits((task.elements - number * kWordElements<Bits>)*kElementBits<Bits>);
}

// The digest's difference, when all words are staged.
template <typename Bits>
DWS_KERNEL KernelDigest FinishDense(const StageTask<Bits>& task) {
  constexpr uint32_t kWords = 4;  // that each lane loads at the same time
  using Round = WordRound<Bits, kWords>;
  task.warp.Sync();
  Vec<KernelDigest> sums;
  for (uint32_t begin = 0; begin < task.place.words(); begin += Round::kCount) {
    const Round round(task.place, begin);
    task.warp.lanes([&](uint32_t lane) {
      uint64_t before[kWords];
      uint64_t after[kWords] = {};
      round.LoadWords(lane, before);
      DWS_UNROLL
      for (uint32_t i = 0; i < kWords; ++i) {
        if (!round.Has(lane, i)) break;
        const uint32_t number = round.Number(lane, i);
        after[i] = Load<uint64_t>(task.positions + uint64_t{number} * 8);
        if (!round.straight()) after[i] &= WordMask(task, number);
      }
      DWS_UNROLL
      for (uint32_t i = 0; i < kWords; ++i) {
        if (before[i] == after[i]) continue;
        AddChange(TermsOf(task.first_word + round.Number(lane, i)), before[i], after[i],
                  sums[lane]);
      }
    });
  }
  return SumDigests(task.warp, sums);
}

// Mode 5. False: damaged.
template <typename Bits>
DWS_KERNEL bool StageDenseRaw(const StageTask<Bits>& task, KernelDigest& difference) {
  if (task.nnz != task.elements || task.parameters != 0 ||
      task.payload.bits() != task.elements * kElementBits<Bits>) {
    return false;
  }
  const uint32_t words = task.place.words();
  for (uint32_t begin = 0; begin < words; begin += Warp::kLanes) {
    task.warp.lanes([&](uint32_t lane) {
      const uint32_t number = begin + lane;
      if (number >= words) return;
      Store<uint64_t>(task.positions + uint64_t{number} * 8,
                      task.payload.Word(number * 64) & WordMask(task, number));
    });
  }
  difference = FinishDense(task);
  return true;
}

// Mode 4. False: damaged.
template <typename Bits>
DWS_KERNEL bool StageDenseUlp(const StageTask<Bits>& task, KernelDigest& difference) {
  const Warp& warp = task.warp;
  ValueStream stream;
  if (!UnpackValueCoding(task.parameters, kElementBits<Bits>, stream.coding)) return false;
  const uint32_t quotients = task.elements * stream.coding.width;
  if (quotients > task.payload.bits() ||
      !OpenValues(warp, task.payload, 0, quotients, task.elements, stream)) {
    return false;
  }
  uint32_t changed = 0;
  for (uint32_t begin = 0; begin < task.elements; begin += Warp::kLanes) {
    const uint32_t left = task.elements - begin;
    const uint32_t count = left < Warp::kLanes ? left : Warp::kLanes;
    Vec<Bits> old;  // loaded before the planes are read
    warp.lanes([&](uint32_t lane) {
      if (lane < count) old[lane] = Load<Bits>(task.place.Address(begin + lane));
    });
    Vec<uint64_t> values;
    if (!NextValues(warp, task.payload, count, stream, values)) return false;
    Vec<uint32_t> bad;
    warp.lanes([&](uint32_t lane) {
      if (lane >= count) return;
      bad[lane] = (values[lane] & ~LowBits(kElementBits<Bits>)) != 0 ? 1 : 0;
      const auto step = static_cast<Bits>(values[lane] >> 1 ^ (0 - (values[lane] & 1)));
      Store<Bits>(task.positions + uint64_t{begin + lane} * sizeof(Bits),
                  FromStep<Bits>(old[lane], step, task.is_float));
    });
    if (warp.Ballot(bad) != 0) return false;
    changed += PopCount(warp.Ballot(values));
  }
  if (changed != task.nnz || !task.payload.EndsCleanly(ValuesEnd(warp, stream))) return false;
  difference = FinishDense(task);
  return true;
}

}  // namespace dws::cuda::kernels
