// dws_commit: writes staged entries to live memory (kernel_args.h describes its input).
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/block_place.h"
#include "common/memory/cuda/kernels/kernel_args.h"
#include "common/memory/cuda/kernels/warp.h"
#include "common/memory/cuda/kernels/word_round.h"
#include "common/memory/cuda/kernels/work_items.h"

namespace dws::cuda::kernels {

// Entries, or words of dense blocks, that each lane loads at the same time: otherwise each read of
// the arena would wait for the one before.
inline constexpr uint32_t kCommitEntries = 4;

template <typename Bits>
DWS_KERNEL void CommitSparse(const Warp& warp, const BlockPlace<Bits>& place, uint64_t staged,
                             uint32_t entries) {
  const uint64_t values = staged + StagedPositionsBytes(entries);
  for (uint32_t begin = 0; begin < entries; begin += Warp::kLanes * kCommitEntries) {
    warp.lanes([&](uint32_t lane) {
      uint32_t positions[kCommitEntries] = {};
      Bits loaded[kCommitEntries] = {};
      DWS_UNROLL
      for (uint32_t i = 0; i < kCommitEntries; ++i) {
        const uint64_t entry = begin + i * Warp::kLanes + lane;
        if (entry >= entries) break;
        positions[i] = Load<uint16_t>(staged + entry * sizeof(uint16_t));
        loaded[i] = Load<Bits>(values + entry * sizeof(Bits));
      }
      DWS_UNROLL
      for (uint32_t i = 0; i < kCommitEntries; ++i) {
        if (begin + i * Warp::kLanes + lane >= entries) break;
        Store<Bits>(place.Address(positions[i]), loaded[i]);
      }
    });
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
