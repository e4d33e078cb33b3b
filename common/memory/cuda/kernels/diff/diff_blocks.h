// dws_diff: finds what changed in live blocks since a snapshot (diff_args.h describes its input and
// output).
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/diff/diff_args.h"
#include "common/memory/cuda/kernels/diff/diff_segment.h"
#include "common/memory/cuda/kernels/diff/diff_work.h"
#include "common/memory/cuda/kernels/warp.h"
#include "common/memory/cuda/kernels/work_items.h"

namespace dws::cuda::kernels {

// Counts a finished segment. If it was the block's last one, takes room in the arena for the
// block's changes. All additions to a tally have one order, so the addition of the last segment
// sees the changes of all others.
DWS_KERNEL void FinishSegment(const Warp& warp, const DiffArgs& args, uint32_t number) {
  warp.lanes([&](uint32_t lane) {
    if (lane != 0) return;
    const uint64_t tally = AtomicAdd(TallyOf(args, number), kOneFinished);
    const DiffBlock& block = ItemAt<DiffBlock>(args.blocks, number);
    const uint32_t segments = DiffSegments(block.elements, block.element.bytes);
    if (tally / kOneFinished + 1 != segments) return;
    DiffResult result;
    const auto changes = static_cast<uint32_t>(tally);
    if (changes <= ListedMax(args, block)) {
      const uint64_t needed = ListedBytes(changes, block.element.bytes);
      const uint64_t at = changes == 0 ? 0 : AtomicAdd(args.arena_used, needed);
      if (at <= args.arena_bytes && needed <= args.arena_bytes - at) {
        result.at = at;
        result.changes = changes;
        result.listed = 1;
      }
    }
    PutItem(args.results, number, result);
  });
}

DWS_KERNEL void DiffBlocks(const Warp& warp, const DiffArgs& args, const WarpShare& share,
                           DiffScratch& scratch) {
  for (uint64_t i = share.first; i < args.segment_count; i += share.step) {
    const uint32_t number = ItemAt<uint32_t>(args.segments, i);
    const Element element = ItemAt<DiffBlock>(args.blocks, number).element;
    WithElementBits(element.bytes, [&](auto bits) DWS_INLINE {
      CompareSegment<decltype(bits)>(warp, args, static_cast<uint32_t>(i), number, scratch);
    });
    FinishSegment(warp, args, number);
  }
}

}  // namespace dws::cuda::kernels
