// Reads whole tensors of a rank at exactly one version, one after the other, as a checkpoint holds
// them: row-major, however the trainer cut them into slices. Also gives their bytes before that
// version.
//
// The bytes are compared with the published digests, because readers of other formats only have
// checksums that are computed from these bytes. Used by slime_writer.h.
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

// Lifecycle: one per version; shares the state. Threads: one at a time.
class TensorReader {
 public:
  // `shards`: indexes in the layout, which holds all slices of each tensor, in the order in which
  // they are read. `wanted` is asked repeatedly; false ends a read with CANCELLED.
  TensorReader(RankStatePtr state, RetainedVersionPtr version, std::vector<uint32_t> shards,
               std::function<bool()> wanted);

  // The bytes of the next tensor, valid until the next call. Do not call it after the last tensor
  // or after an error. ABORTED: the version can no longer be reached from the snapshot. DATA_LOSS:
  // our own memory is damaged.
  Result<ByteSpan> Next();

  // Calls fn(before, after) for consecutive pieces of the next tensor, which must have a base
  // version: a few MiB each, or all of a tensor whose slices are not whole rows. Errors as Next,
  // perhaps after `fn` was called with damaged bytes.
  using OnPiece = std::function<void(ByteSpan before, ByteSpan after)>;
  Status NextChange(const OnPiece& fn);
  // Like NextChange, with old bytes from another source: read(offset, to) gives the tensor's old
  // bytes from `offset` on, row-major. Errors also of `read`.
  using ReadBefore = std::function<Status(uint64_t offset, MutableByteSpan to)>;
  Status NextChangeFrom(const ReadBefore& read, const OnPiece& fn);

 private:
  const Shard& shard() const { return state_->layout().shards()[shards_[next_ - 1]]; }

  // Calls fn(frame) for each frame of the next tensor, in order, then compares the digest of each
  // slice.
  template <typename Fn>
  Status ReadFrames(Fn&& fn);
  // The frame's bytes before the version, in `before`.
  Status Undo(const FullFrame& frame, MutableByteSpan before);
  // DATA_LOSS: a slice does not have the digest that was published.
  Status CheckDigest(RankSlice slice, const Digest& found, const Digest& expected) const;

  const RankStatePtr state_;
  const RetainedVersionPtr version_;
  const std::vector<uint32_t> shards_;
  const std::function<bool()> wanted_;
  FullReader reader_;
  size_t next_ = 0;                // in shards_
  std::vector<FullFrame> frames_;  // of reader_, which owns their memory
  size_t next_frame_ = 0;
  std::vector<std::byte> after_;      // slice by slice
  std::vector<std::byte> before_;     // the same, or of one frame
  std::vector<std::byte> row_major_;  // of a tensor whose slices are not whole rows
  std::vector<std::byte> row_major_before_;
  Digest before_digest_;  // of the current slice, as far as it was undone
  UndoScratch undo_;
};

// Returns whether the slices' bytes, one slice after another, are the tensor's bytes, row-major.
// Pure.
bool SlicesAreRows(const TensorSpec& tensor);

// The bytes of a tensor as one array, from its slices' bytes one after the other: returns `slices`
// or `buffer`. Pure.
ByteSpan RowMajor(const TensorSpec& tensor, ByteSpan slices, std::vector<std::byte>& buffer);

}  // namespace dws
