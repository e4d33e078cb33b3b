// Stamps say when each block of a snapshot last changed. With them readers take bytes of exactly
// one version without a lock, in this process or in another process that maps the memory. A reader
// looks at the stamp, takes the bytes, and looks at the stamp again: if both times the block had
// not changed since the wanted version, the bytes are of that version.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

#include "common/model/weight_version.h"

namespace dws {

// The stamp of one block: the newest version whose capture changed the block, or is changing it
// now. An undone capture leaves its number, and the number may be published later, with other
// weights: what is read as of a newer version has to be proved by digests, like everything else.
using BlockStamp = std::atomic<uint64_t>;
static_assert(BlockStamp::is_always_lock_free, "stamps are shared by processes");

namespace internal {
// Set while the bytes change. Versions from here on are never read without a lock.
inline constexpr uint64_t kStampChanging = uint64_t{1} << 63;
}  // namespace internal

// Marks a block as changing while this object exists. For the one thread that changes it.
class StampedChange {
 public:
  StampedChange(BlockStamp& stamp, WeightVersion version)
      : stamp_(stamp), version_(version.value()) {
    stamp_.store(version_ | internal::kStampChanging, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);  // before the bytes
  }
  ~StampedChange() { stamp_.store(version_, std::memory_order_release); }
  StampedChange(const StampedChange&) = delete;
  StampedChange& operator=(const StampedChange&) = delete;

 private:
  BlockStamp& stamp_;
  const uint64_t version_;
};

// Marks blocks as changing, of which nothing is known then, until MarkAt. For their one writer.
inline void MarkChanging(std::span<BlockStamp> stamps) {
  for (BlockStamp& stamp : stamps) {
    stamp.store(internal::kStampChanging, std::memory_order_relaxed);
  }
  std::atomic_thread_fence(std::memory_order_release);  // before the bytes
}
inline void MarkAt(std::span<BlockStamp> stamps, WeightVersion version) {
  for (BlockStamp& stamp : stamps) stamp.store(version.value(), std::memory_order_release);
}

// Returns the version whose capture changed the block last; nullopt: one is changing it now. If the
// stamp is the same after the bytes were taken, they are of that version, unless its capture was
// undone.
inline std::optional<WeightVersion> ChangedBy(uint64_t stamp) {
  if ((stamp & internal::kStampChanging) != 0) return std::nullopt;
  return WeightVersion(stamp);
}

// Returns whether the block with this copy of its stamp has the bytes of `version`, whose capture
// has ended.
inline bool IsAt(uint64_t stamp, WeightVersion version) {
  return stamp <= version.value() && version.value() < internal::kStampChanging;
}

// Returns whether all blocks with these stamps have the bytes of `version`, whose capture has
// ended. Call it before the bytes are taken and again afterwards: they are of `version` only if it
// returns true both times.
inline bool AllAt(std::span<const BlockStamp> stamps, WeightVersion version) {
  std::atomic_thread_fence(std::memory_order_acquire);  // after the bytes
  for (const BlockStamp& stamp : stamps) {
    if (!IsAt(stamp.load(std::memory_order_acquire), version)) return false;
  }
  return true;
}

// Returns whether the capture of `version` was the last one to change all blocks with these stamps:
// then their bytes are known before that capture has ended. Call it twice, like AllAt.
inline bool AllBy(std::span<const BlockStamp> stamps, WeightVersion version) {
  std::atomic_thread_fence(std::memory_order_acquire);  // after the bytes
  for (const BlockStamp& stamp : stamps) {
    if (stamp.load(std::memory_order_acquire) != version.value()) return false;
  }
  return true;
}

}  // namespace dws
