// The place where full tensors are put together: every source fills blocks here, in any order,
// until none is missing. It takes the digest of arrived bytes while they are in the cache.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/model/block_range.h"
#include "common/model/weight_version.h"
#include "common/spool/fetched_full.h"

namespace dws {

// A block as a version after the wanted one has it. The delta between them turns it back.
struct NewerBlock {
  WeightVersion at;  // the version that changed the block last
  BlockRange block;
  std::vector<std::byte> bytes;
};

// Lifecycle: one per transfer. Threads: Room, Take, Drop, KeepNewer and has_room_for_newer from
// many at once, for different blocks; the others from one at a time.
class FullAssembly {
 public:
  // `want` must outlive it. If it has a device, there is no room yet. Errors as MakeRoom.
  static Result<std::unique_ptr<FullAssembly>> Create(const FullWant& want, Spool::Options options);

  const RankLayout& layout() const { return want_.layout; }
  std::span<const RankSlice> slices() const { return want_.slices; }
  const EarlyVersion* early() const { return want_.early; }
  // Why bytes could not be kept here, from any source; OK: they could.
  Status failed() const;
  // Returns whether the caller still wants it. Reads ask before they begin something long.
  bool wanted() const { return !wanted_ || wanted_(); }
  // Calls FullWant's `refuse`, if it has one.
  void Refuse(const Status& reason) const {
    if (want_.refuse != nullptr) (*want_.refuse)(reason);
  }
  // Returns whether all of these blocks belong to the wanted slices.
  bool Wants(const BlockRange& range) const;
  // What has not come yet, ascending.
  std::vector<BlockRange> Missing() const;
  uint64_t missing_blocks() const { return missing_blocks_; }

  // Makes room for the slices that no device has, if there is none yet: before the first Room, Take
  // or memory. Errors as Spool::Allocate.
  Status MakeRoom();
  // Returns the place for the bytes of wanted blocks; `buffer` as for Spool::Room.
  MutableByteSpan Room(const BlockRange& range, std::vector<std::byte>& buffer);
  // Returns whether blocks are written to live memory as they arrive: then only bytes that do not
  // change meanwhile may be taken.
  bool direct() const { return want_.direct != nullptr; }
  // In which every Room is, to be registered with a device; empty if it may be in `buffer`.
  MutableByteSpan memory() {
    if (want_.placed == nullptr) return spool_.memory();
    return want_.placed->all_whole() ? want_.placed->memory : MutableByteSpan();
  }
  // `bytes`: the filled place that Room returned, or bytes to copy there. Taking the same blocks
  // again replaces the old bytes. Errors as Spool::Fill, or as DirectTarget.
  Status Take(const BlockRange& range, ByteSpan bytes);
  // Returns whether a slice of GPU memory can be copied to where this one is wanted.
  bool TakesLent(RankSlice slice) const {
    return want_.device != nullptr && want_.device->Takes(want_.rank, slice);
  }
  // Copies whole slices for which TakesLent is true, once they are described. Returns those that
  // were not as expected: they are missing. Errors as DeviceTarget::Copy, and CANCELLED: then all
  // are missing.
  Result<std::vector<RankSlice>> TakeLent(std::vector<LentSlice> lent);
  // They have to come again: what Room returned may be half filled.
  void Drop(const BlockRange& range);
  // Returns whether there is room for a block that has changed since the wanted version.
  bool has_room_for_newer() const { return newer_bytes_ < newer_bytes_max_; }
  // Keeps such a block for the caller of TakeNewer.
  void KeepNewer(NewerBlock newer);
  // Returns what was kept, and makes room.
  std::vector<NewerBlock> TakeNewer();
  // Drops the complete slices that are not as expected, and returns them. For an early version,
  // call it after it is described.
  std::vector<RankSlice> DropWrong();

  // Call it once nothing is missing; it ends the assembly.
  FetchedFull Finish();

 private:
  FullAssembly(const FullWant& want, Spool spool, TransferProgress* progress,
               std::function<bool()> wanted, uint64_t newer_bytes_max);
  Status Keep(const BlockRange& range, uint64_t offset, ByteSpan bytes);

  const FullWant want_;
  std::vector<uint64_t> first_byte_;   // in the spool, by slice, once there is room
  std::vector<uint64_t> first_block_;  // counted through the slices, by slice
  Spool spool_;
  bool has_room_;
  TransferProgress* const progress_;
  const std::function<bool()> wanted_;  // of a direct transfer; a spool has its own
  uint64_t size_bytes_ = 0;
  std::vector<Digest> digests_;     // by block, counted so
  std::vector<uint8_t> here_;       // the same
  std::vector<uint8_t> on_device_;  // by slice: it is staged there, which is final
  std::atomic<uint64_t> missing_blocks_{0};
  const uint64_t newer_bytes_max_;
  std::atomic<uint64_t> newer_bytes_{0};
  mutable Mutex mutex_;
  std::vector<NewerBlock> newer_ GUARDED_BY(mutex_);
  Status failed_ GUARDED_BY(mutex_);
};

uint64_t MissingBytes(const FullAssembly& assembly);

}  // namespace dws
