// Whole tensors of a rank at exactly one version, one after the other, as a checkpoint holds them:
// row-major, whatever slices the trainer cut them into. And what they were before that version.
//
// What is read is held against the digests that were published: readers of other formats have only
// checksums that are made of it. Used by slime_writer.h. One tensor is in memory at a time, twice
// when `before` is asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/model/tensor_spec.h"
#include "sender_daemon/publish/full_reader.h"
#include "sender_daemon/publish/rank_state.h"
#include "sender_daemon/publish/undo_blocks.h"

namespace dws {

// Lifecycle: one for each version; shares the state. Threads: one at a time.
class TensorReader {
 public:
  // `shards`: of the layout, which holds all slices of each tensor, in the order in which they are
  // wanted. `wanted` is asked now and then; false ends a read with CANCELLED.
  TensorReader(RankStatePtr state, RetainedVersionPtr version, std::vector<uint32_t> shards,
               std::function<bool()> wanted);

  // The bytes of the next tensor, until the next call. Not after the last one, nor after an error.
  // ABORTED: the version can no longer be reached from the snapshot. DATA_LOSS: our own memory is
  // damaged.
  Result<ByteSpan> Next();

  // Of the tensor that Next gave, its bytes before the version, which has a base. Until the next
  // call of either. DATA_LOSS: our own memory is damaged.
  Result<ByteSpan> Before();

 private:
  const Shard& shard() const { return state_->layout().shards()[shards_[next_ - 1]]; }

  // DATA_LOSS: the bytes of one slice do not have this digest.
  Status Check(RankSlice slice, ByteSpan bytes, const Digest& expected) const;
  // The tensor's slices, with where each lies in the bytes of all.
  template <typename Fn>
  Status ForEachSlice(Fn&& fn) const;

  const RankStatePtr state_;
  const RetainedVersionPtr version_;
  const std::vector<uint32_t> shards_;
  const std::function<bool()> wanted_;
  FullReader reader_;
  size_t next_ = 0;                // of shards_
  std::vector<FullFrame> frames_;  // of the reader, its memory
  size_t next_frame_ = 0;
  std::vector<std::byte> after_;  // slice by slice
  std::vector<std::byte> before_;
  std::vector<std::byte> row_major_;  // of a tensor whose slices are not its rows
  std::vector<std::byte> row_major_before_;
  UndoScratch undo_;
};

// The bytes of a tensor as one array, from those of its slices, one after the other: `slices`
// itself, or `buffer`. Pure.
ByteSpan RowMajor(const TensorSpec& tensor, ByteSpan slices, std::vector<std::byte>& buffer);

}  // namespace dws
