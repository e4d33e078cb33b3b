// dws_diff: lists what changed in live blocks since a snapshot (kernel_args.h describes its input
// and output).
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/block_place.h"
#include "common/memory/cuda/kernels/collectives.h"
#include "common/memory/cuda/kernels/kernel_args.h"
#include "common/memory/cuda/kernels/warp.h"
#include "common/memory/cuda/kernels/word_mix.h"
#include "common/memory/cuda/kernels/word_round.h"
#include "common/memory/cuda/kernels/work_items.h"

namespace dws::cuda::kernels {

// Words of each side that each lane loads at the same time.
inline constexpr uint32_t kDiffWords = 4;

// The addresses of three arrays of changes, one after the other, with room for `capacity` each.
template <typename Bits>
struct ChangeArrays {
  DWS_KERNEL ChangeArrays(uint64_t address, uint32_t capacity)
      : positions(address),
        before(positions + StagedPositionsBytes(capacity)),
        after(before + (uint64_t{capacity} * sizeof(Bits) + 7) / 8 * 8) {}

  uint64_t positions;
  uint64_t before;
  uint64_t after;
};

// The state of one block's comparison. Uniform, except the sums.
template <typename Bits>
struct Comparison {
  ChangeArrays<Bits> room;
  uint64_t first_word;
  uint32_t capacity;
  uint32_t changes = 0;
  Vec<KernelDigest> sums;
};

// Gathers the changes of 32 words of the block; lane i has word first + i. False: there are more
// changes than there is room for.
template <typename Bits>
DWS_KERNEL bool CompareWords(const Warp& warp, uint32_t first, const Vec<uint64_t>& before,
                             const Vec<uint64_t>& after, Comparison<Bits>& comparison) {
  constexpr uint32_t kElements = kWordElements<Bits>;
  Vec<uint64_t> differing;
  warp.lanes([&](uint32_t lane) { differing[lane] = before[lane] ^ after[lane]; });
  if (warp.Ballot(differing) == 0) return true;
  Vec<uint32_t> counts;
  warp.lanes([&](uint32_t lane) {
    DWS_UNROLL
    for (uint32_t e = 0; e < kElements; ++e) {
      counts[lane] += ElementOf<Bits>(differing[lane], e) != 0 ? 1 : 0;
    }
  });
  const Vec<uint32_t> ends = RunningSum(warp, counts);
  const uint32_t all = warp.Broadcast(ends, Warp::kLanes - 1);
  if (comparison.changes + all > comparison.capacity) return false;
  warp.lanes([&](uint32_t lane) {
    if (counts[lane] == 0) return;
    uint64_t change = comparison.changes + ends[lane] - counts[lane];
    DWS_UNROLL
    for (uint32_t e = 0; e < kElements; ++e) {
      if (ElementOf<Bits>(differing[lane], e) == 0) continue;
      Store<uint16_t>(comparison.room.positions + change * sizeof(uint16_t),
                      static_cast<uint16_t>((first + lane) * kElements + e));
      Store<Bits>(comparison.room.before + change * sizeof(Bits), ElementOf<Bits>(before[lane], e));
      Store<Bits>(comparison.room.after + change * sizeof(Bits), ElementOf<Bits>(after[lane], e));
      ++change;
    }
    AddChange(TermsOf(comparison.first_word + first + lane), before[lane], after[lane],
              comparison.sums[lane]);
  });
  comparison.changes += all;
  return true;
}

// Compares the whole block. False: there are more changes than there is room for.
template <typename Bits>
DWS_KERNEL bool Compare(const Warp& warp, const BlockPlace<Bits>& snapshot,
                        const BlockPlace<Bits>& live, Comparison<Bits>& comparison) {
  using Round = WordRound<Bits, kDiffWords>;
  for (uint32_t begin = 0; begin < live.words(); begin += Round::kCount) {
    const Round snapshot_round(snapshot, begin);
    const Round live_round(live, begin);
    Vec<uint64_t> before[kDiffWords];
    Vec<uint64_t> after[kDiffWords];
    warp.lanes([&](uint32_t lane) {
      uint64_t snapshot_words[kDiffWords];
      uint64_t live_words[kDiffWords];
      snapshot_round.LoadWords(lane, snapshot_words);
      live_round.LoadWords(lane, live_words);
      DWS_UNROLL
      for (uint32_t i = 0; i < kDiffWords; ++i) {
        LoadedForGood(live_words[i]);
        before[i][lane] = snapshot_words[i];
        after[i][lane] = live_words[i];
      }
    });
    DWS_UNROLL
    for (uint32_t i = 0; i < kDiffWords; ++i) {
      if (!CompareWords(warp, begin + i * Warp::kLanes, before[i], after[i], comparison)) {
        return false;
      }
    }
  }
  return true;
}

// Copies `size_bytes` between addresses that are multiples of 8, and pads them with zeros to a
// multiple of 8.
DWS_KERNEL void CopyWords(const Warp& warp, uint64_t from, uint64_t to, uint64_t size_bytes) {
  warp.lanes([&](uint32_t lane) {
    for (uint64_t at = uint64_t{lane} * 8; at < size_bytes; at += Warp::kLanes * 8) {
      const uint64_t left = size_bytes - at;
      const uint64_t mask = left < 8 ? LowBits(static_cast<uint32_t>(left) * 8) : ~uint64_t{0};
      Store<uint64_t>(to + at, Load<uint64_t>(from + at) & mask);
    }
  });
}

// Copies the gathered changes to the arena, and to the snapshot if asked for. False: the arena has
// no room.
template <typename Bits>
DWS_KERNEL bool ListChanges(const Warp& warp, const DiffArgs& args, uint64_t snapshot,
                            const Comparison<Bits>& comparison, DiffResult& result) {
  const uint32_t changes = comparison.changes;
  if (changes != 0) {
    const uint64_t needed = ListedBytes(changes, sizeof(Bits));
    Vec<uint64_t> offset;
    warp.lanes([&](uint32_t lane) {
      if (lane == 0) offset[lane] = AtomicAdd(args.arena_used, needed);
    });
    const uint64_t at = warp.Broadcast(offset, 0);
    if (at > args.arena_bytes || needed > args.arena_bytes - at) return false;
    warp.Sync();
    const ChangeArrays<Bits> listed(args.arena + at, changes);
    CopyWords(warp, comparison.room.positions, listed.positions, changes * sizeof(uint16_t));
    CopyWords(warp, comparison.room.before, listed.before, uint64_t{changes} * sizeof(Bits));
    CopyWords(warp, comparison.room.after, listed.after, uint64_t{changes} * sizeof(Bits));
    result.at = at;
  }
  for (uint32_t begin = 0; args.update != 0 && begin < changes; begin += Warp::kLanes) {
    warp.lanes([&](uint32_t lane) {
      const uint64_t change = begin + lane;
      if (change >= changes) return;
      const uint32_t position = Load<uint16_t>(comparison.room.positions + change * 2);
      Store<Bits>(snapshot + uint64_t{position} * sizeof(Bits),
                  Load<Bits>(comparison.room.after + change * sizeof(Bits)));
    });
  }
  result.changes = changes;
  result.listed = 1;
  return true;
}

template <typename Bits>
DWS_KERNEL void DiffOne(const Warp& warp, const DiffArgs& args, const DiffBlock& block,
                        uint64_t room, DiffResult& result) {
  const uint32_t capacity = args.dense_above < block.elements ? args.dense_above : block.elements;
  if (ListedBytes(capacity, sizeof(Bits)) > args.room_bytes) return;
  const BlockPlace<Bits> live(ItemAt<Place>(args.places, block.place), block.first_element,
                              block.elements);
  const BlockPlace<Bits> snapshot({block.snapshot, kBlockElementsMax, 0}, 0, block.elements);
  Comparison<Bits> comparison = {
      ChangeArrays<Bits>(room, capacity), block.first_word, capacity, 0, {}};
  warp.Sync();  // all lanes are done with the previous block's room
  if (!Compare(warp, snapshot, live, comparison)) return;
  const KernelDigest difference = SumDigests(warp, comparison.sums);
  if (ListChanges(warp, args, block.snapshot, comparison, result)) result.difference = difference;
}

DWS_KERNEL void DiffBlocks(const Warp& warp, const DiffArgs& args, const WarpShare& share) {
  if (share.first >= args.room_count) return;
  const uint64_t step = share.step < args.room_count ? share.step : args.room_count;
  const uint64_t room = args.rooms + share.first * args.room_bytes;
  for (uint64_t i = share.first; i < args.block_count; i += step) {
    const DiffBlock block = ItemAt<DiffBlock>(args.blocks, i);
    DiffResult result;
    WithElementBits(block.element.bytes,
                    [&](auto bits) { DiffOne<decltype(bits)>(warp, args, block, room, result); });
    warp.lanes([&](uint32_t lane) {
      if (lane == 0) PutItem(args.results, i, result);
    });
  }
}

}  // namespace dws::cuda::kernels
