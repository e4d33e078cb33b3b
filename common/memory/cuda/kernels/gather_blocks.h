// dws_gather: copies live blocks to memory in slice order (kernel_args.h describes its input).
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/block_place.h"
#include "common/memory/cuda/kernels/kernel_args.h"
#include "common/memory/cuda/kernels/warp.h"
#include "common/memory/cuda/kernels/word_round.h"
#include "common/memory/cuda/kernels/work_items.h"

namespace dws::cuda::kernels {

// Words that each lane loads at the same time.
inline constexpr uint32_t kGatherWords = 4;

template <typename Bits>
DWS_KERNEL void GatherOne(const Warp& warp, const GatherArgs& args, const GatherBlock& block) {
  using Round = WordRound<Bits, kGatherWords>;
  const BlockPlace<Bits> place(ItemAt<Place>(args.places, block.place), block.first_element,
                               block.elements);
  for (uint32_t begin = 0; begin < place.words(); begin += Round::kCount) {
    const Round round(place, begin);
    warp.lanes([&](uint32_t lane) {
      uint64_t loaded[kGatherWords];
      round.LoadWords(lane, loaded);
      DWS_UNROLL
      for (uint32_t i = 0; i < kGatherWords; ++i) {
        if (!round.Has(lane, i)) break;
        Store<uint64_t>(block.target + uint64_t{round.Number(lane, i)} * 8, loaded[i]);
      }
    });
  }
}

DWS_KERNEL void GatherBlocks(const Warp& warp, const GatherArgs& args, const WarpShare& share) {
  for (uint64_t i = share.first; i < args.block_count; i += share.step) {
    const GatherBlock block = ItemAt<GatherBlock>(args.blocks, i);
    WithElementBits(block.element_bytes,
                    [&](auto bits) { GatherOne<decltype(bits)>(warp, args, block); });
  }
}

}  // namespace dws::cuda::kernels
