// Where full tensors are put together: every way by which they come fills blocks here, in any order,
// until none is missing. Takes the digest of what has arrived while that is in the cache.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/model/block_range.h"
#include "common/spool/fetched_full.h"

namespace dws {

// Lifecycle: one per transfer. Threads: Room, Take and Drop from many at once, for different blocks;
// the others from one at a time.
class FullAssembly {
 public:
  // `want` outlives it. Errors: Spool::Allocate's.
  static Result<std::unique_ptr<FullAssembly>> Create(const FullWant& want, Spool::Options options);

  const RankLayout& layout() const { return want_.layout; }
  std::span<const RankSlice> slices() const { return want_.slices; }
  const EarlyVersion* early() const { return want_.early; }
  // Whether the caller still wants it; reads ask before they begin something long.
  bool wanted() const { return !wanted_ || wanted_(); }
  // FullWant's, if it has one.
  void Refuse(const Status& reason) const {
    if (want_.refuse != nullptr) (*want_.refuse)(reason);
  }
  // Whether all of these blocks belong to the slices.
  bool Wants(const BlockRange& range) const;
  // What has not come yet, ascending.
  std::vector<BlockRange> Missing() const;
  uint64_t missing_blocks() const { return missing_blocks_; }

  // Where to put the bytes of wanted blocks; `buffer` as Spool::Room.
  MutableByteSpan Room(const BlockRange& range, std::vector<std::byte>& buffer);
  // Whether blocks are written to live memory as they come: only what does not change meanwhile may
  // be taken.
  bool direct() const { return want_.direct != nullptr; }
  // In which Room is, to be registered with a device; empty if it is in `buffer`.
  MutableByteSpan memory() { return spool_.memory(); }
  // `bytes`: what Room returned, filled, or what is to be copied there. The same blocks again
  // replace what was there. Errors: Spool::Fill's, or DirectTarget's.
  Status Take(const BlockRange& range, ByteSpan bytes);
  // They have to come again: what Room returned may be half filled.
  void Drop(const BlockRange& range);
  // Drops the slices that are all there and are not as expected; returns them. Of an early version
  // once it is described.
  std::vector<RankSlice> DropWrong();

  // Once nothing is missing; ends it.
  FetchedFull Finish();

 private:
  FullAssembly(const FullWant& want, Spool spool, TransferProgress* progress,
               std::function<bool()> wanted);
  Status Keep(const BlockRange& range, uint64_t offset, ByteSpan bytes);
  size_t IndexOf(RankSlice slice) const;

  const FullWant want_;
  std::vector<uint64_t> first_byte_;   // in the spool, by slice
  std::vector<uint64_t> first_block_;  // counted through the slices, by slice
  Spool spool_;
  TransferProgress* const progress_;
  const std::function<bool()> wanted_;  // of a direct transfer; a spool has its own
  uint64_t size_bytes_ = 0;
  std::vector<Digest> digests_;  // by block, counted so
  std::vector<uint8_t> here_;    // the same
  std::atomic<uint64_t> missing_blocks_{0};
};

}  // namespace dws
