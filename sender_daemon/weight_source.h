// Where a capture reads current weights from. The seam between the two ways a trainer hands weights
// over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/bytes.h"
#include "common/model/layout.h"

namespace dws {

// One block of one rank slice.
struct BlockRef {
  RankSlice slice;
  uint32_t block = 0;
};

// Threads: called from several at once, for different blocks.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // Copies the current bytes of one block, in slice order, to `block` (exactly its size). Each word
  // of the trainer's memory is loaded once, so delta, digest and snapshot agree even if the trainer
  // writes meanwhile.
  virtual void Read(BlockRef ref, MutableByteSpan block) const = 0;

  // The trainer's own `size_bytes` bytes of one block where they lie in slice order, one after the
  // other; empty where they do not, then the block has to be Read. Whoever looks loads each byte
  // once.
  virtual ByteSpan View(BlockRef ref, size_t size_bytes) const = 0;
};

}  // namespace dws
