// A source of the two states of a block. This interface separates reading the states from the use
// of their difference.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "common/model/limits.h"
#include "tools/checkpoint/parts/block_walk.h"
#include "tools/checkpoint/parts/tensors.h"

namespace dws::checkpoint {

// The bytes of one block in both states.
struct BlockStates {
  ByteSpan before;
  ByteSpan after;  // of the same size; may be the same memory when nothing changes
};

// A source of block states. Threads: Read from any, but one call per worker at a time; Prepare
// while nobody reads.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  // These blocks, consecutive ones of a walk, are read next.
  virtual void Prepare(std::span<const WalkedBlock> /*window*/) {}
  // Returns whether blocks of the slice can be read at any time, without Prepare.
  virtual bool IsReady(RankSlice /*slice*/) const { return true; }
  // The result is valid until the worker's next Read. Errors: of the source.
  virtual Result<BlockStates> Read(RankSlice slice, uint32_t block, size_t worker) = 0;
};

// The bytes of one block of `tensor`, which is a whole tensor.
inline ByteSpan BlockOf(const RankLayout::SliceEntry& entry, uint32_t block, ByteSpan tensor) {
  const uint64_t begin = uint64_t{block} * limits::kBlockElements * ElementBytes(entry.dtype);
  return tensor.subspan(begin,
                        uint64_t{BlockElements(entry.elements, block)} * ElementBytes(entry.dtype));
}

// Two checkpoints with the same tensors; `before[i]` and `after[i]` are rank slice i of `layout`.
// Lifecycle: points into both checkpoints and the layout, which must outlive it.
class PairSource final : public BlockSource {
 public:
  PairSource(const RankLayout& layout, std::vector<const CheckpointTensor*> before,
             std::vector<const CheckpointTensor*> after)
      : layout_(layout), before_(std::move(before)), after_(std::move(after)) {}

  Result<BlockStates> Read(RankSlice slice, uint32_t block, size_t /*worker*/) override {
    const RankLayout::SliceEntry& entry = layout_.slice(slice);
    return BlockStates{.before = BlockOf(entry, block, before_[slice.value()]->bytes),
                       .after = BlockOf(entry, block, after_[slice.value()]->bytes)};
  }

 private:
  const RankLayout& layout_;
  const std::vector<const CheckpointTensor*> before_;
  const std::vector<const CheckpointTensor*> after_;
};

}  // namespace dws::checkpoint
