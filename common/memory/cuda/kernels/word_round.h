// The words of a block, a round at a time: a few for each lane, all loaded at the same time.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/block_place.h"
#include "common/memory/cuda/kernels/warp.h"

namespace dws::cuda::kernels {

// The words begin to begin + kCount - 1. Word `i` (below kWords) of a lane is number begin + 32 * i
// + lane. It is determined once for the round that all are contiguous; if so, single words need no
// checks. Uniform. Keeps a reference to the place.
template <typename Bits, uint32_t kWords>
class WordRound {
 public:
  static constexpr uint32_t kCount = Warp::kLanes * kWords;

  DWS_KERNEL WordRound(const BlockPlace<Bits>& place, uint32_t begin)
      : place_(place),
        begin_(begin),
        straight_(place.SideBySide(begin * kElements, kCount * kElements, 8, &address_)) {}

  // Returns whether the round is contiguous. If so, the block has all its words, and they are
  // whole.
  DWS_KERNEL bool straight() const { return straight_; }
  DWS_KERNEL uint32_t Number(uint32_t lane, uint32_t i) const {
    return begin_ + i * Warp::kLanes + lane;
  }
  // Returns whether the block has that word.
  DWS_KERNEL bool Has(uint32_t lane, uint32_t i) const {
    return straight_ || Number(lane, i) < place_.words();
  }

  // The words of a lane; zeros after the block's last word.
  DWS_KERNEL void LoadWords(uint32_t lane, uint64_t (&words)[kWords]) const {
    if (straight_) {
      DWS_UNROLL
      for (uint32_t i = 0; i < kWords; ++i) words[i] = Load<uint64_t>(AddressOf(lane, i));
      return;
    }
    DWS_UNROLL
    for (uint32_t i = 0; i < kWords; ++i) {
      words[i] = Has(lane, i) ? place_.LoadWord(Number(lane, i)) : 0;
    }
  }

  DWS_KERNEL void StoreWords(uint32_t lane, const uint64_t (&words)[kWords]) const {
    if (straight_) {
      DWS_UNROLL
      for (uint32_t i = 0; i < kWords; ++i) Store<uint64_t>(AddressOf(lane, i), words[i]);
      return;
    }
    DWS_UNROLL
    for (uint32_t i = 0; i < kWords; ++i) {
      if (Has(lane, i)) place_.StoreWord(Number(lane, i), words[i]);
    }
  }

 private:
  static constexpr uint32_t kElements = kWordElements<Bits>;

  DWS_KERNEL uint64_t AddressOf(uint32_t lane, uint32_t i) const {
    return address_ + uint64_t{lane} * 8 + i * Warp::kLanes * 8;
  }

  const BlockPlace<Bits>& place_;
  const uint32_t begin_;
  uint64_t address_ = 0;  // of the first word, if straight
  const bool straight_;
};

}  // namespace dws::cuda::kernels
