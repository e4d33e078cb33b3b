// The newest items of a sequence that never ends: the history of versions in a status.
#pragma once

#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/threads/mutex.h"

namespace dws {

// How many versions a status has, as proto/sender_status.proto and receiver_status.proto promise.
inline constexpr size_t kHistoryVersionsMax = 100;

// Threads: safe from any.
template <typename Item>
class RecentItems {
 public:
  // Adding one more than `count_max` drops the oldest.
  explicit RecentItems(size_t count_max = kHistoryVersionsMax) : count_max_(count_max) {
    DWS_CHECK(count_max > 0);
  }

  void Add(Item item) {
    MutexLock lock(mutex_);
    if (items_.size() >= count_max_) items_.pop_front();
    items_.push_back(std::move(item));
  }
  // Calls `change(Item&)` with one item after the other, the newest first, until it returns false.
  // It is called under the lock.
  template <typename Change>
  void ChangeWhile(const Change& change) {
    MutexLock lock(mutex_);
    for (auto item = items_.rbegin(); item != items_.rend() && change(*item);) ++item;
  }
  // Returns a copy of the items, the oldest first.
  std::vector<Item> All() const {
    MutexLock lock(mutex_);
    return {items_.begin(), items_.end()};
  }

 private:
  const size_t count_max_;
  mutable Mutex mutex_;
  std::deque<Item> items_ GUARDED_BY(mutex_);
};

}  // namespace dws
