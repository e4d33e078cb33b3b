// When each block of a snapshot last changed: what lets readers take bytes of exactly one version
// without a lock, in this process or in another one that maps the memory. A reader looks at the
// stamp, takes the bytes, and looks again: what it has is of the version it wants if both times the
// block had not changed since.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "common/model/weight_version.h"

namespace dws {

// Of one block: the newest version whose capture changed it, or is changing it just now. A capture
// that is undone leaves its number: readers then take the block another way.
using BlockStamp = std::atomic<uint64_t>;
static_assert(BlockStamp::is_always_lock_free, "stamps are shared by processes");

namespace internal {
// Set while the bytes change. Versions from here on are never read without a lock.
inline constexpr uint64_t kStampChanging = uint64_t{1} << 63;
}  // namespace internal

// Marks a block as changing while it exists. For the one thread that changes it.
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

// Of a copy of a stamp: whether the block's bytes are as of `version`, whose capture has ended.
inline bool IsAt(uint64_t stamp, WeightVersion version) {
  return stamp <= version.value() && version.value() < internal::kStampChanging;
}

// Whether the bytes of all blocks with these stamps are as of `version`, whose capture has ended.
// Asked before the bytes are taken, and again afterwards: only when both answers are true they are.
inline bool AllAt(std::span<const BlockStamp> stamps, WeightVersion version) {
  std::atomic_thread_fence(std::memory_order_acquire);  // after the bytes
  for (const BlockStamp& stamp : stamps) {
    if (!IsAt(stamp.load(std::memory_order_acquire), version)) return false;
  }
  return true;
}

// Whether it was the capture of `version` that changed all blocks with these stamps last: how their
// bytes are known before that capture has ended. Asked twice, as AllAt.
inline bool AllBy(std::span<const BlockStamp> stamps, WeightVersion version) {
  std::atomic_thread_fence(std::memory_order_acquire);  // after the bytes
  for (const BlockStamp& stamp : stamps) {
    if (stamp.load(std::memory_order_acquire) != version.value()) return false;
  }
  return true;
}

}  // namespace dws
