// The changed words of one segment, on their way to the log (diff_args.h).
//
// At 1 % of changed elements 1 of 25 words differs, so nearly all rows of 32 words have one. The
// work for a changed word takes far longer than its comparison, and in its row most lanes would
// wait. So changed words are only queued in scratch memory, until all lanes have work.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/block_place.h"
#include "common/memory/cuda/kernels/collectives.h"
#include "common/memory/cuda/kernels/diff/diff_args.h"
#include "common/memory/cuda/kernels/diff/diff_work.h"
#include "common/memory/cuda/kernels/warp.h"
#include "common/memory/cuda/kernels/word_mix.h"
#include "common/memory/cuda/kernels/work_items.h"

namespace dws::cuda::kernels {

// Number of words that are queued between two checks that there is room for as many more.
inline constexpr uint32_t kDiffRoundWords = 128;
inline constexpr uint32_t kDiffQueueWords = 2 * kDiffRoundWords;

// The state of one segment's comparison that is not needed for every round: registers are short.
struct DiffScratch {
  // Changed words that are not in the log yet, ascending.
  uint64_t before[kDiffQueueWords];
  uint64_t after[kDiffQueueWords];
  uint16_t numbers[kDiffQueueWords];  // in the block
  // The changes that were written to the log.
  KernelDigest sums[Warp::kLanes];  // the sum over all lanes counts
  DiffPiece last;
  uint32_t changes;
};

// The log of one segment of block number `number`. Uniform.
template <typename Bits>
class SegmentLog {
 public:
  DWS_KERNEL SegmentLog(const Warp& warp, const DiffArgs& args, uint32_t number,
                        DiffScratch& scratch)
      : warp_(warp), args_(args), number_(number), scratch_(scratch) {
    warp.Sync();  // all lanes are done with the segment before
    warp.lanes([&](uint32_t lane) {
      scratch_.sums[lane] = {};
      if (lane != 0) return;
      scratch_.last = {};
      scratch_.changes = 0;
    });
  }

  // Returns whether a Flush must precede the next kDiffRoundWords words.
  DWS_KERNEL bool full() const { return queued_ > kDiffQueueWords - kDiffRoundWords; }

  // Queues those of 32 words that differ; lane i has word first + i.
  DWS_KERNEL void Queue(const Vec<uint64_t>& before, const Vec<uint64_t>& after, uint32_t first) {
    Vec<uint64_t> differing;
    warp_.lanes([&](uint32_t lane) { differing[lane] = before[lane] ^ after[lane]; });
    const uint32_t changed = warp_.Ballot(differing);
    warp_.lanes([&](uint32_t lane) {
      if (differing[lane] == 0) return;
      const uint32_t at = queued_ + PopCount(Before(changed, lane));
      scratch_.before[at] = before[lane];
      scratch_.after[at] = after[lane];
      scratch_.numbers[at] = static_cast<uint16_t>(first + lane);
    });
    queued_ += PopCount(changed);
  }

  // Writes the queued words to a piece of the log. Returns false if the block has more changes than
  // may be listed, or if the log is full; the tally then has more than ListedMax() changes.
  DWS_KERNEL bool Flush() {
    if (queued_ == 0) return true;
    warp_.Sync();
    // Loaded again: to keep it costs registers in every round.
    const DiffBlock block = ItemAt<DiffBlock>(args_.blocks, number_);
    const uint32_t changes = CountChanges();
    uint64_t at = 0;
    if (!Reserve(changes, ListedMax(args_, block), at)) return false;
    const uint64_t piece = LogStart(args_) + at;
    Write(ChangeArrays<Bits>(piece + sizeof(DiffPiece), changes), block.first_word);
    warp_.lanes([&](uint32_t lane) {
      if (lane != 0) return;
      PutItem(piece, 0, scratch_.last);
      scratch_.last = {at, changes};
      scratch_.changes += changes;
    });
    queued_ = 0;
    warp_.Sync();  // all lanes are done with the queue
    return true;
  }

  // After the last Flush.
  DWS_KERNEL DiffFound Found() const {
    warp_.Sync();
    Vec<KernelDigest> sums;
    warp_.lanes([&](uint32_t lane) { sums[lane] = scratch_.sums[lane]; });
    return {SumDigests(warp_, sums), scratch_.last, scratch_.changes};
  }

 private:
  static constexpr uint32_t kElements = kWordElements<Bits>;

  DWS_KERNEL static uint32_t ChangesIn(uint64_t before, uint64_t after) {
    uint32_t changes = 0;
    DWS_UNROLL
    for (uint32_t e = 0; e < kElements; ++e) {
      changes += ElementOf<Bits>(before ^ after, e) != 0 ? 1 : 0;
    }
    return changes;
  }

  DWS_KERNEL uint32_t CountChanges() const {
    Vec<uint32_t> counts;
    for (uint32_t first = 0; first < queued_; first += Warp::kLanes) {
      warp_.lanes([&](uint32_t lane) {
        const uint32_t i = first + lane;
        if (i < queued_) counts[lane] += ChangesIn(scratch_.before[i], scratch_.after[i]);
      });
    }
    return Sum(warp_, counts);
  }

  // Adds to the block's changes, of which `max` are listed, and takes room for these from the log.
  DWS_KERNEL bool Reserve(uint32_t changes, uint32_t max, uint64_t& at) const {
    const uint64_t tally = TallyOf(args_, number_);
    const uint64_t needed = sizeof(DiffPiece) + ListedBytes(changes, sizeof(Bits));
    const uint64_t room = args_.work + args_.work_bytes - LogStart(args_);
    Vec<uint32_t> reserved;
    Vec<uint64_t> taken;
    warp_.lanes([&](uint32_t lane) {
      if (lane != 0) return;
      const auto before = static_cast<uint32_t>(AtomicAdd(tally, changes));
      if (before + changes > max) return;
      taken[lane] = AtomicAdd(LogUsed(args_), needed);
      reserved[lane] = taken[lane] <= room && needed <= room - taken[lane] ? 1 : 0;
      if (reserved[lane] == 0) AtomicAdd(tally, uint64_t{max} + 1);
    });
    at = warp_.Broadcast(taken, 0);
    return warp_.Broadcast(reserved, 0) != 0;
  }

  DWS_KERNEL void Write(const ChangeArrays<Bits>& to, uint64_t first_word) {
    uint32_t written = 0;
    for (uint32_t first = 0; first < queued_; first += Warp::kLanes) {
      Vec<uint32_t> counts;
      warp_.lanes([&](uint32_t lane) {
        const uint32_t i = first + lane;
        if (i < queued_) counts[lane] = ChangesIn(scratch_.before[i], scratch_.after[i]);
      });
      const Vec<uint32_t> ends = RunningSum(warp_, counts);
      warp_.lanes([&](uint32_t lane) {
        if (counts[lane] == 0) return;
        const uint64_t before = scratch_.before[first + lane];
        const uint64_t after = scratch_.after[first + lane];
        const uint32_t number = scratch_.numbers[first + lane];
        uint64_t change = written + ends[lane] - counts[lane];
        DWS_UNROLL
        for (uint32_t e = 0; e < kElements; ++e) {
          if (ElementOf<Bits>(before ^ after, e) == 0) continue;
          Store<uint16_t>(to.positions + change * sizeof(uint16_t),
                          static_cast<uint16_t>(number * kElements + e));
          Store<Bits>(to.before + change * sizeof(Bits), ElementOf<Bits>(before, e));
          Store<Bits>(to.after + change * sizeof(Bits), ElementOf<Bits>(after, e));
          ++change;
        }
        AddChange(TermsOf(first_word + number), before, after, scratch_.sums[lane]);
      });
      written += warp_.Broadcast(ends, Warp::kLanes - 1);
    }
  }

  const Warp& warp_;
  const DiffArgs& args_;
  const uint32_t number_;
  DiffScratch& scratch_;
  uint32_t queued_ = 0;
};

}  // namespace dws::cuda::kernels
