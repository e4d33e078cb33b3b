// The comparison of one segment of a block with the snapshot (diff_args.h) by one warp.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/block_place.h"
#include "common/memory/cuda/kernels/diff/diff_args.h"
#include "common/memory/cuda/kernels/diff/diff_log.h"
#include "common/memory/cuda/kernels/diff/diff_work.h"
#include "common/memory/cuda/kernels/warp.h"
#include "common/memory/cuda/kernels/word_round.h"
#include "common/memory/cuda/kernels/work_items.h"

namespace dws::cuda::kernels {

// Words of each side that each lane loads at the same time.
inline constexpr uint32_t kDiffWords = kDiffRoundWords / Warp::kLanes;
static_assert(kDiffSegmentWords % kDiffRoundWords == 0);

// The words of both sides that a warp loads at the same time: word i of a lane is 32 * i + lane.
struct DiffRound {
  Vec<uint64_t> before[kDiffWords];
  Vec<uint64_t> after[kDiffWords];
};

// Uniform. Keeps references to its constructor's arguments.
template <typename Bits>
class SegmentDiff {
 public:
  DWS_KERNEL SegmentDiff(const Warp& warp, const BlockPlace<Bits>& snapshot,
                         const BlockPlace<Bits>& live, SegmentLog<Bits>& log)
      : warp_(warp), snapshot_(snapshot), live_(live), log_(log) {}

  // Compares the words `begin` to `end` - 1 of the block. Loads one round while it queues the round
  // before. Stops early if the log is full.
  DWS_KERNEL void Compare(uint32_t begin, uint32_t end) {
    DiffRound ahead;
    bool pending = false;  // `ahead` is the round before `at`
    for (uint32_t at = begin; at < end || pending;) {
      const DiffRound loaded = ahead;
      const bool was_pending = pending;
      const uint32_t first = was_pending ? at - kDiffRoundWords : at;
      pending = at < end && Load(at, ahead);
      if (was_pending) {
        Queue(loaded, first);
      } else if (!pending) {
        QueueScattered(first);
      }
      if (pending || !was_pending) at += kDiffRoundWords;
      const bool last = at >= end && !pending;
      if ((last || log_.full()) && !log_.Flush()) return;
    }
  }

 private:
  // Starts to load a round. Returns false, and loads nothing, if the round is not contiguous on
  // both sides.
  DWS_KERNEL bool Load(uint32_t begin, DiffRound& round) const {
    const WordRound<Bits, kDiffWords> snapshot_round(snapshot_, begin);
    const WordRound<Bits, kDiffWords> live_round(live_, begin);
    if (!snapshot_round.straight() || !live_round.straight()) return false;
    warp_.lanes([&](uint32_t lane) {
      uint64_t snapshot_words[kDiffWords];
      uint64_t live_words[kDiffWords];
      snapshot_round.LoadWords(lane, snapshot_words);
      live_round.LoadWords(lane, live_words);
      DWS_UNROLL
      for (uint32_t i = 0; i < kDiffWords; ++i) {
        LoadedForGood(live_words[i]);
        round.before[i][lane] = snapshot_words[i];
        round.after[i][lane] = live_words[i];
      }
    });
    return true;
  }

  DWS_KERNEL void Queue(const DiffRound& round, uint32_t begin) {
    DWS_UNROLL
    for (uint32_t i = 0; i < kDiffWords; ++i) {
      log_.Queue(round.before[i], round.after[i], begin + i * Warp::kLanes);
    }
  }

  // Loads and queues a round of any layout; the block may end in it.
  DWS_KERNEL void QueueScattered(uint32_t begin) {
    for (uint32_t first = begin; first < begin + kDiffRoundWords; first += Warp::kLanes) {
      Vec<uint64_t> before;
      Vec<uint64_t> after;
      warp_.lanes([&](uint32_t lane) {
        if (first + lane >= live_.words()) return;
        before[lane] = snapshot_.LoadWord(first + lane);
        after[lane] = live_.LoadWord(first + lane);
        LoadedForGood(after[lane]);
      });
      log_.Queue(before, after, first);
    }
  }

  const Warp& warp_;
  const BlockPlace<Bits>& snapshot_;
  const BlockPlace<Bits>& live_;
  SegmentLog<Bits>& log_;
};

// Compares segment `segment` of block number `number` and writes the result down.
template <typename Bits>
DWS_KERNEL void CompareSegment(const Warp& warp, const DiffArgs& args, uint32_t segment,
                               uint32_t number, DiffScratch& scratch) {
  const DiffBlock block = ItemAt<DiffBlock>(args.blocks, number);
  const BlockPlace<Bits> live(ItemAt<Place>(args.places, block.place), block.first_element,
                              block.elements);
  const BlockPlace<Bits> snapshot({block.snapshot, kBlockElementsMax, 0}, 0, block.elements);
  const uint32_t begin = (segment - block.first_segment) * kDiffSegmentWords;
  const uint32_t left = live.words() - begin;
  SegmentLog<Bits> log(warp, args, number, scratch);
  SegmentDiff<Bits>(warp, snapshot, live, log)
      .Compare(begin, begin + (left < kDiffSegmentWords ? left : kDiffSegmentWords));
  const DiffFound found = log.Found();
  warp.lanes([&](uint32_t lane) {
    if (lane == 0) PutItem(FoundOf(args, segment), 0, found);
  });
}

}  // namespace dws::cuda::kernels
