// dws_diff_list: copies the changes that dws_diff found from the log to the lists of blocks, and to
// the snapshot (diff_args.h describes its input and output).
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

// Each lane takes what was found in one segment of a block.
static_assert(kBlockElementsMax <= Warp::kLanes * kDiffSegmentWords);

// Changes that each lane copies at the same time.
inline constexpr uint32_t kDiffCopies = 2;

// Copies `count` changes to places from `first` on in the lists, and to the snapshot if that is not
// 0.
template <typename Bits>
DWS_KERNEL void CopyChanges(const Warp& warp, const ChangeArrays<Bits>& from, uint32_t count,
                            const ChangeArrays<Bits>& to, uint64_t first, uint64_t snapshot) {
  for (uint32_t begin = 0; begin < count; begin += kDiffCopies * Warp::kLanes) {
    warp.lanes([&](uint32_t lane) {
      uint16_t positions[kDiffCopies];
      Bits before[kDiffCopies];
      Bits after[kDiffCopies];
      DWS_UNROLL
      for (uint32_t i = 0; i < kDiffCopies; ++i) {
        const uint64_t change = begin + i * Warp::kLanes + lane;
        if (change >= count) break;
        positions[i] = Load<uint16_t>(from.positions + change * sizeof(uint16_t));
        before[i] = Load<Bits>(from.before + change * sizeof(Bits));
        after[i] = Load<Bits>(from.after + change * sizeof(Bits));
      }
      DWS_UNROLL
      for (uint32_t i = 0; i < kDiffCopies; ++i) {
        const uint64_t change = begin + i * Warp::kLanes + lane;
        if (change >= count) break;
        Store<uint16_t>(to.positions + (first + change) * sizeof(uint16_t), positions[i]);
        Store<Bits>(to.before + (first + change) * sizeof(Bits), before[i]);
        Store<Bits>(to.after + (first + change) * sizeof(Bits), after[i]);
        if (snapshot != 0) {
          Store<Bits>(snapshot + uint64_t{positions[i]} * sizeof(Bits), after[i]);
        }
      }
    });
  }
}

// Writes the zeros behind `count` changes that pad each array to a multiple of 8 bytes.
template <typename Bits>
DWS_KERNEL void PadChanges(const Warp& warp, const ChangeArrays<Bits>& to, uint64_t count) {
  warp.lanes([&](uint32_t lane) {
    const uint64_t at = count + lane;
    if (at < StagedPositionsBytes(count) / sizeof(uint16_t)) {
      Store<uint16_t>(to.positions + at * sizeof(uint16_t), 0);
    }
    if (at < (count * sizeof(Bits) + 7) / 8 * kWordElements<Bits>) {
      Store<Bits>(to.before + at * sizeof(Bits), 0);
      Store<Bits>(to.after + at * sizeof(Bits), 0);
    }
  });
}

// Copies the changes of segment `segment` of a listed block to the block's part of the arena. The
// first segment's warp also completes the result.
template <typename Bits>
DWS_KERNEL void ListSegment(const Warp& warp, const DiffArgs& args, uint32_t segment,
                            uint32_t number, const DiffBlock& block, const DiffResult& result) {
  const uint32_t segments = DiffSegments(block.elements, sizeof(Bits));
  Vec<uint32_t> changes;
  Vec<KernelDigest> differences;
  warp.lanes([&](uint32_t lane) {
    if (lane >= segments) return;
    const DiffFound& found = ItemAt<DiffFound>(FoundOf(args, block.first_segment), lane);
    changes[lane] = found.changes;
    differences[lane] = found.difference;
  });
  const ChangeArrays<Bits> listed(args.arena + result.at, result.changes);
  if (segment == block.first_segment) {
    const KernelDigest difference = SumDigests(warp, differences);
    warp.lanes([&](uint32_t lane) {
      if (lane == 0) PutItem(args.results + number * sizeof(DiffResult), 0, difference);
    });
    PadChanges(warp, listed, result.changes);
  }
  const uint32_t end = warp.Broadcast(RunningSum(warp, changes), segment - block.first_segment);
  const uint32_t begin = end - warp.Broadcast(changes, segment - block.first_segment);
  DiffPiece piece = ItemAt<DiffFound>(FoundOf(args, segment), 0).last;
  // The last piece first: each names the one before.
  for (uint32_t first = end; first != begin;) {
    const uint64_t address = LogStart(args) + piece.at;
    first -= piece.changes;
    CopyChanges(warp, ChangeArrays<Bits>(address + sizeof(DiffPiece), piece.changes), piece.changes,
                listed, first, args.update != 0 ? block.snapshot : 0);
    piece = ItemAt<DiffPiece>(address, 0);
  }
}

DWS_KERNEL void ListDiff(const Warp& warp, const DiffArgs& args, const WarpShare& share) {
  for (uint64_t i = share.first; i < args.segment_count; i += share.step) {
    const uint32_t number = ItemAt<uint32_t>(args.segments, i);
    const DiffBlock block = ItemAt<DiffBlock>(args.blocks, number);
    const DiffResult result = ItemAt<DiffResult>(args.results, number);
    if (result.listed == 0) continue;
    WithElementBits(block.element.bytes, [&](auto bits) DWS_INLINE {
      ListSegment<decltype(bits)>(warp, args, static_cast<uint32_t>(i), number, block, result);
    });
  }
}

}  // namespace dws::cuda::kernels
