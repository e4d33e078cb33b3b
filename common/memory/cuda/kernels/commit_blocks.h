// dws_commit: writes staged entries to live memory (kernel_args.h describes its input).
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/block_place.h"
#include "common/memory/cuda/kernels/kernel_args.h"
#include "common/memory/cuda/kernels/warp.h"
#include "common/memory/cuda/kernels/word_round.h"
#include "common/memory/cuda/kernels/work_items.h"

namespace dws::cuda::kernels {

// Number of entries, or words of dense blocks, that each lane loads at the same time: otherwise
// each read of the arena would wait for the read before.
inline constexpr uint32_t kCommitEntries = 4;
// True if the sectors of the next entries are fetched before they are written.
inline constexpr bool kCommitFetches = false;

// Some entries of each lane: number i of a lane is `begin` + 32 * i + lane.
template <typename Bits>
class EntryRound {
 public:
  static constexpr uint32_t kCount = Warp::kLanes * kCommitEntries;

  // Loads the entries below `entries`.
  DWS_KERNEL void LoadEntries(const Warp& warp, [[maybe_unused]] const BlockPlace<Bits>& place,
                              uint64_t staged, uint32_t begin, uint32_t entries) {
    const uint64_t values = staged + StagedPositionsBytes(entries);
    warp.lanes([&](uint32_t lane) {
      DWS_UNROLL
      for (uint32_t i = 0; i < kCommitEntries; ++i) {
        const uint64_t entry = begin + i * Warp::kLanes + lane;
        if (entry >= entries) break;
        positions_[i][lane] = Load<uint16_t>(staged + entry * sizeof(uint16_t));
        values_[i][lane] = Load<Bits>(values + entry * sizeof(Bits));
      }
      if constexpr (kCommitFetches) {
        DWS_UNROLL
        for (uint32_t i = 0; i < kCommitEntries; ++i) {
          if (begin + i * Warp::kLanes + lane < entries) Fetch(place.Address(positions_[i][lane]));
        }
      }
    });
  }

  DWS_KERNEL void StoreEntries(const Warp& warp, const BlockPlace<Bits>& place, uint32_t begin,
                               uint32_t entries) const {
    warp.lanes([&](uint32_t lane) {
      DWS_UNROLL
      for (uint32_t i = 0; i < kCommitEntries; ++i) {
        if (begin + i * Warp::kLanes + lane >= entries) break;
        Store<Bits>(place.Address(positions_[i][lane]), values_[i][lane]);
      }
    });
  }

 private:
  Vec<uint32_t> positions_[kCommitEntries];
  Vec<Bits> values_[kCommitEntries];
};

// The next round is loaded while one is stored.
template <typename Bits>
DWS_KERNEL void CommitSparse(const Warp& warp, const BlockPlace<Bits>& place, uint64_t staged,
                             uint32_t entries) {
  using Round = EntryRound<Bits>;
  Round next;
  next.LoadEntries(warp, place, staged, 0, entries);
  for (uint32_t begin = 0; begin < entries; begin += Round::kCount) {
    const Round round = next;
    next.LoadEntries(warp, place, staged, begin + Round::kCount, entries);
    round.StoreEntries(warp, place, begin, entries);
  }
}

template <typename Bits>
DWS_KERNEL void CommitDense(const Warp& warp, const BlockPlace<Bits>& place, uint64_t staged) {
  using Round = WordRound<Bits, kCommitEntries>;
  for (uint32_t begin = 0; begin < place.words(); begin += Round::kCount) {
    const Round round(place, begin);
    warp.lanes([&](uint32_t lane) {
      uint64_t loaded[kCommitEntries] = {};
      DWS_UNROLL
      for (uint32_t i = 0; i < kCommitEntries; ++i) {
        if (!round.Has(lane, i)) break;
        loaded[i] = Load<uint64_t>(staged + uint64_t{round.Number(lane, i)} * 8);
      }
      round.StoreWords(lane, loaded);
    });
  }
}

template <typename Bits>
DWS_KERNEL void CommitOne(const Warp& warp, const CommitArgs& args, const CommitBlock& block) {
  // The stage kernel guarantees that the positions of sparse entries are inside the block.
  const BlockPlace<Bits> place(ItemAt<Place>(args.places, block.place), block.first_element,
                               block.dense != 0 ? block.entries : kBlockElementsMax);
  const uint64_t staged = args.arena + block.staged;
  if (block.dense != 0) {
    CommitDense<Bits>(warp, place, staged);
  } else {
    CommitSparse<Bits>(warp, place, staged, block.entries);
  }
}

DWS_KERNEL void CommitBlocks(const Warp& warp, const CommitArgs& args, const WarpShare& share) {
  for (uint64_t i = share.first; i < args.block_count; i += share.step) {
    const CommitBlock block = ItemAt<CommitBlock>(args.blocks, i);
    WithElementBits(block.element_bytes,
                    [&](auto bits) { CommitOne<decltype(bits)>(warp, args, block); });
  }
}

}  // namespace dws::cuda::kernels
