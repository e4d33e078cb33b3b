// The last step of staging sparse blocks: from positions, and steps or values, to new values and
// the digest's difference. For modes 1 and 2 only this step reads live memory, and only the words
// that change.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/collectives.h"
#include "common/memory/cuda/kernels/stage_task.h"
#include "common/memory/cuda/kernels/word_mix.h"

namespace dws::cuda::kernels {

// What is known about the changes.
enum class Known : uint8_t {
  kSigns,   // steps of +-1, in a plane of the payload
  kSteps,   // steps, staged in the places of the values
  kValues,  // values, staged
};

// The changes of the next round, loaded in advance: their loads overlap with the current round.
template <typename Bits>
struct LoadedChanges {
  Vec<uint32_t> positions;
  Vec<uint64_t> words;  // of live memory, around the changed element
  Vec<Bits> known;
};

template <typename Bits>
DWS_KERNEL void LoadChanges(const StageTask<Bits>& task, Known known, uint32_t signs,
                            uint32_t begin, LoadedChanges<Bits>& changes) {
  const uint32_t count = task.Round(begin);
  const uint64_t negative = known == Known::kSigns ? task.payload.Word(signs + begin) : 0;
  task.warp.lanes([&](uint32_t lane) {
    if (lane >= count) return;
    const uint32_t position = Load<uint16_t>(task.PositionAt(begin + lane));
    changes.positions[lane] = position;
    changes.words[lane] = task.place.LoadWord(position / kWordElements<Bits>);
    changes.known[lane] = known == Known::kSigns ? SignedStep<Bits>(1, (negative >> lane & 1) != 0)
                                                 : Load<Bits>(task.ValueAt(begin + lane));
  });
}

// The last word of a round, with the round's changes: the next round may change it too. Each round
// adds the difference that its changes make to a word, so the differences of two rounds add up.
struct OpenWord {
  uint32_t number = 0xFFFFFFFF;
  uint64_t word = 0;
};

template <typename Bits>
DWS_KERNEL void FinishRound(const StageTask<Bits>& task, const LoadedChanges<Bits>& changes,
                            Known known, uint32_t begin, OpenWord& open, Vec<KernelDigest>& sums) {
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
  // Changes of one word are in neighbouring lanes. The first of these, the leader, gathers the
  // patches.
  DWS_UNROLL
  for (uint32_t by = 1; by < kElements; by *= 2) {
    const Vec<uint32_t> above = warp.FromAbove(numbers, by);
    const Vec<uint64_t> patches_above = warp.FromAbove(patches, by);
    warp.lanes([&](uint32_t lane) {
      if (lane + by < Warp::kLanes && above[lane] == numbers[lane]) {
        patches[lane] |= patches_above[lane];
      }
    });
  }
  const Vec<uint32_t> below = warp.FromBelow(numbers, 1);
  Vec<uint32_t> leads;
  Vec<uint64_t> after;
  warp.lanes([&](uint32_t lane) {
    if (lane >= count || (lane != 0 && below[lane] == numbers[lane])) return;
    leads[lane] = 1;
    const uint64_t before = numbers[lane] == open.number ? open.word : changes.words[lane];
    after[lane] = before ^ patches[lane];
    AddChange(TermsOf(task.first_word + numbers[lane]), before, after[lane], sums[lane]);
  });
  const uint32_t last = HighestOne(warp.Ballot(leads));
  open.number = warp.Broadcast(numbers, last);
  open.word = warp.Broadcast(after, last);
}

// Stages the new values of nnz changes, whose positions, and steps or values, are already staged.
// `signs` is the first bit of the sign plane. Returns the digest's difference.
template <typename Bits>
DWS_KERNEL KernelDigest FinishSparse(const StageTask<Bits>& task, Known known, uint32_t signs) {
  task.warp.Sync();
  Vec<KernelDigest> sums;
  OpenWord open;
  LoadedChanges<Bits> next;
  LoadChanges(task, known, signs, 0, next);
  for (uint32_t begin = 0; begin < task.nnz; begin += Warp::kLanes) {
    const LoadedChanges<Bits> changes = next;
    if (task.nnz - begin > Warp::kLanes) {
      LoadChanges(task, known, signs, begin + Warp::kLanes, next);
    }
    FinishRound(task, changes, known, begin, open, sums);
  }
  return SumDigests(task.warp, sums);
}

}  // namespace dws::cuda::kernels
