// dws_digest: the digests of live blocks (kernel_args.h describes its input and output).
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/block_place.h"
#include "common/memory/cuda/kernels/kernel_args.h"
#include "common/memory/cuda/kernels/warp.h"
#include "common/memory/cuda/kernels/word_mix.h"
#include "common/memory/cuda/kernels/word_round.h"
#include "common/memory/cuda/kernels/work_items.h"

namespace dws::cuda::kernels {

// Words that each lane loads at the same time.
inline constexpr uint32_t kDigestWords = 4;

template <typename Bits>
DWS_KERNEL void DigestOne(const Warp& warp, const DigestArgs& args, const DigestBlock& block) {
  using Round = WordRound<Bits, kDigestWords>;
  const BlockPlace<Bits> place(ItemAt<Place>(args.places, block.place), block.first_element,
                               block.elements);
  const uint32_t words = place.words();
  Vec<IndexTerms> terms;
  Vec<KernelDigest> sums;
  warp.lanes([&](uint32_t lane) { terms[lane] = TermsOf(block.first_word + lane); });
  for (uint32_t begin = 0; begin < words; begin += Round::kCount) {
    const Round round(place, begin);
    warp.lanes([&](uint32_t lane) {
      uint64_t loaded[kDigestWords];
      round.LoadWords(lane, loaded);
      DWS_UNROLL
      for (uint32_t i = 0; i < kDigestWords; ++i) {
        if (!round.Has(lane, i)) break;
        AddWord(Further(terms[lane], i * Warp::kLanes), loaded[i], sums[lane]);
      }
      terms[lane] = Further(terms[lane], Round::kCount);
    });
  }
  AddDigest(warp, args.digests, block.result, SumDigests(warp, sums));
}

DWS_KERNEL void DigestBlocks(const Warp& warp, const DigestArgs& args, const WarpShare& share) {
  for (uint64_t i = share.first; i < args.block_count; i += share.step) {
    const DigestBlock block = ItemAt<DigestBlock>(args.blocks, i);
    WithElementBits(block.element_bytes,
                    [&](auto bits) { DigestOne<decltype(bits)>(warp, args, block); });
  }
}

}  // namespace dws::cuda::kernels
