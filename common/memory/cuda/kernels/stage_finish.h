// The last step of staging sparse blocks: from positions, and steps or values, to new values and
// the digest's difference. For modes 1 and 2 only this step reads live memory, and only the words
// that change.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/collectives.h"
#include "common/memory/cuda/kernels/stage_task.h"
#include "common/memory/cuda/kernels/word_mix.h"

namespace dws::cuda::kernels {

// Selects the known part of the changes.
enum class Known : uint8_t {
  kSigns,   // steps of +-1, in a plane of the payload
  kSteps,   // steps, staged in the places of the values
  kValues,  // values, staged
};

// The changes of one round.
template <typename Bits>
struct Changes {
  Vec<uint32_t> positions;
  Vec<Bits> known;
  Vec<uint64_t> words;  // of live memory, around the changed element
};

// Loads the staged part of the round that begins with change `begin`.
template <typename Bits>
DWS_KERNEL void LoadStaged(const StageTask<Bits>& task, Known known, uint32_t signs, uint32_t begin,
                           Changes<Bits>& changes) {
  const uint32_t count = task.Round(begin);
  const uint32_t negative = known == Known::kSigns ? task.payload.HalfWord(signs + begin) : 0;
  task.warp.lanes([&](uint32_t lane) {
    if (lane >= count) return;
    changes.positions[lane] = Load<uint16_t>(task.PositionAt(begin + lane));
    changes.known[lane] = known == Known::kSigns ? SignedStep<Bits>(1, (negative >> lane & 1) != 0)
                                                 : Load<Bits>(task.ValueAt(begin + lane));
  });
}

// Loads the live words of a round's positions.
template <typename Bits>
DWS_KERNEL void LoadLive(const StageTask<Bits>& task, uint32_t begin, Changes<Bits>& changes) {
  const uint32_t count = task.Round(begin);
  task.warp.lanes([&](uint32_t lane) {
    if (lane < count) {
      changes.words[lane] = task.place.LoadOneWord(changes.positions[lane] / kWordElements<Bits>);
    }
  });
}

// What the rounds have in common. A word may have changes of two rounds: each round adds the
// difference that its changes make to the word, so the differences add up.
struct Finish {
  Vec<KernelDigest> sums;
  Vec<uint64_t> after;           // the words of the last round, with its changes,
  uint32_t last = 0;             // the lane that has the last of these words,
  uint32_t number = 0xFFFFFFFF;  // and its number
};

// Ors the patches of each word together in its first lane. Bit i of `heads`: lane i has another
// word than the lane before.
template <typename Bits>
DWS_KERNEL void GatherPatches(const Warp& warp, uint32_t heads, Vec<uint64_t>& patches) {
  DWS_UNROLL
  for (uint32_t by = 1; by < kWordElements<Bits>; by *= 2) {
    const Vec<uint64_t> above = warp.FromAbove(patches, by);
    warp.lanes([&](uint32_t lane) {
      if (lane + by < Warp::kLanes && (heads >> lane >> 1 & ((1U << by) - 1)) == 0) {
        patches[lane] |= above[lane];
      }
    });
  }
}

// Stages the new values of a round.
template <typename Bits>
DWS_KERNEL void FinishRound(const StageTask<Bits>& task, const Changes<Bits>& changes, Known known,
                            uint32_t begin, Finish& finish) {
  constexpr uint32_t kElements = kWordElements<Bits>;
  const Warp& warp = task.warp;
  const uint32_t count = task.Round(begin);
  Vec<uint32_t> numbers;
  Vec<uint64_t> patches;  // bits of the word that change
  warp.lanes([&](uint32_t lane) {
    numbers[lane] = 0xFFFFFFFF;
    if (lane >= count) return;
    const uint32_t index = changes.positions[lane] % kElements;
    const Bits old = ElementOf<Bits>(changes.words[lane], index);
    const Bits value = known == Known::kValues
                           ? changes.known[lane]
                           : FromStep<Bits>(old, changes.known[lane], task.is_float);
    Store<Bits>(task.ValueAt(begin + lane), value);
    numbers[lane] = changes.positions[lane] / kElements;
    patches[lane] = uint64_t{static_cast<Bits>(old ^ value)} << (index * kElementBits<Bits> % 64);
  });
  const Vec<uint32_t> below = warp.FromBelow(numbers, 1);
  Vec<uint32_t> differs;
  warp.lanes([&](uint32_t lane) {
    const uint32_t before = lane == 0 ? finish.number : below[lane];
    differs[lane] = numbers[lane] != before ? 1 : 0;
  });
  uint32_t heads = warp.Ballot(differs);
  // Few words have several changes, and then in neighbouring lanes.
  const auto present = static_cast<uint32_t>(LowBits(count));
  if ((~heads & present) > 1) GatherPatches<Bits>(warp, heads, patches);
  Vec<uint64_t> before = changes.words;
  if ((heads & 1) == 0) {
    const uint64_t word = warp.Broadcast(finish.after, finish.last);
    warp.lanes([&](uint32_t lane) {
      if (lane == 0) before[lane] = word;
    });
  }
  heads = (heads | 1) & present;
  warp.lanes([&](uint32_t lane) {
    if ((heads >> lane & 1) == 0) return;
    finish.after[lane] = before[lane] ^ patches[lane];
    AddChange(TermsOf(task.first_word + numbers[lane]), before[lane], finish.after[lane],
              finish.sums[lane]);
  });
  finish.last = HighestOne(heads);
  finish.number = warp.Broadcast(numbers, count - 1);
}

// Stages the new values of nnz changes, whose positions, and steps or values, are already staged.
// `signs` is the first bit of the sign plane. Returns the digest's difference.
//
// While one round is finished, the two rounds after it are being loaded: the live words of the next
// one, and the staged part of the one after that.
template <typename Bits>
DWS_KERNEL KernelDigest FinishSparse(const StageTask<Bits>& task, Known known, uint32_t signs) {
  task.warp.Sync();
  Finish finish;
  Changes<Bits> next;
  Changes<Bits> staged;
  LoadStaged(task, known, signs, 0, next);
  LoadLive(task, 0, next);
  if (task.nnz > Warp::kLanes) LoadStaged(task, known, signs, Warp::kLanes, staged);
  for (uint32_t begin = 0; begin < task.nnz; begin += Warp::kLanes) {
    const Changes<Bits> changes = next;
    const uint32_t left = task.nnz - begin;
    if (left > Warp::kLanes) {
      next = staged;
      LoadLive(task, begin + Warp::kLanes, next);
    }
    if (left > 2 * Warp::kLanes) {
      LoadStaged(task, known, signs, begin + 2 * Warp::kLanes, staged);
    }
    FinishRound(task, changes, known, begin, finish);
  }
  return SumDigests(task.warp, finish.sums);
}

}  // namespace dws::cuda::kernels
