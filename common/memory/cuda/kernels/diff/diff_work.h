// The places of the intermediate results of comparing live blocks with a snapshot (diff_args.h).
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/block_place.h"
#include "common/memory/cuda/kernels/diff/diff_args.h"
#include "common/memory/cuda/kernels/warp.h"

namespace dws::cuda::kernels {

// The addresses of three arrays of changes, one after the other, with room for `capacity` each.
template <typename Bits>
struct ChangeArrays {
  DWS_KERNEL ChangeArrays(uint64_t address, uint64_t capacity)
      : positions(address),
        before(positions + StagedPositionsBytes(capacity)),
        after(before + (capacity * sizeof(Bits) + 7) / 8 * 8) {}

  uint64_t positions;
  uint64_t before;
  uint64_t after;
};

// Addresses in DiffArgs::work.
DWS_KERNEL uint64_t LogUsed(const DiffArgs& args) { return args.work; }
DWS_KERNEL uint64_t TallyOf(const DiffArgs& args, uint32_t block) {
  return args.work + sizeof(uint64_t) + uint64_t{block} * sizeof(uint64_t);
}
DWS_KERNEL uint64_t FoundOf(const DiffArgs& args, uint32_t segment) {
  return args.work + DiffZeroBytes(args.block_count) + uint64_t{segment} * sizeof(DiffFound);
}
DWS_KERNEL uint64_t LogStart(const DiffArgs& args) {
  return args.work + DiffWorkBytes(args.block_count, args.segment_count);
}

// The low half of a tally counts changes, the high half finished segments.
inline constexpr uint64_t kOneFinished = uint64_t{1} << 32;

// The most changes of a block that are listed.
DWS_KERNEL uint32_t ListedMax(const DiffArgs& args, const DiffBlock& block) {
  return args.dense_above < block.elements ? args.dense_above : block.elements;
}

}  // namespace dws::cuda::kernels
