// Composes several consecutive deltas into one, exactly.
//   Squash      from their steps alone, without any weights: steps of consecutive versions add up
//   SquashOver  over the weights that the first begins with: any blocks, class-split ones too
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/delta/objects/delta_link.h"
#include "common/model/layout.h"

namespace dws {

// The object from the base of the first of `chain` to the version of the last. Each version is the
// base of the next delta (CHECK), and all are of `layout`. DATA_LOSS: a delta is damaged, does not
// begin with the weights that the deltas before it end with, or has blocks that cannot be composed
// (raw, dense raw, dense zstd or class-split). Other errors are those of a link's `frame`.
Result<std::vector<std::byte>> Squash(const RankLayout& layout, std::span<const DeltaLink> chain);

// The weights at the beginning of a chain. Threads: one.
class OldWeights {
 public:
  virtual ~OldWeights() = default;

  // Returns whether the slice is here, with this digest.
  virtual bool Has(RankSlice slice, const Digest& digest) const = 0;
  // Fills `out` with whole blocks of a slice that is here, in slice order, from `first_block` on.
  virtual Status Read(RankSlice slice, uint32_t first_block, MutableByteSpan out) const = 0;
};

// Makes the object that Squash describes, encoded as steps, for the slices that `old` has in the
// state in which the chain begins. The manifest also names the other slices, and those whose bytes
// in `old` do not have the digest that `old` states, which shows when a block does not decode. The
// object has no changes for these: receivers refuse them by their digests. RESOURCE_EXHAUSTED: its
// frames have more than `bytes_max`. DATA_LOSS: a delta is damaged, or does not begin with the
// weights that the deltas before it end with. Other errors are those of a link's `frame` and of
// `old`.
Result<std::vector<std::byte>> SquashOver(const RankLayout& layout,
                                          std::span<const DeltaLink> chain, const OldWeights& old,
                                          uint64_t bytes_max, ThreadPool& pool);

}  // namespace dws
