// What a commit group has its worker do: the orders that wait for it.
#pragma once

#include <cstdint>
#include <deque>
#include <variant>
#include <vector>

#include "common/base/threads/mutex.h"
#include "common/sync_state/group_leader_state.h"
#include "common/sync_state/group_member_state.h"

namespace dws {

struct StageOrder {
  uint64_t attempt = 0;  // tells it from one of another connection that has the same nonce
  StageTarget what;
};
using GroupOrder = std::variant<StageOrder, DropStaged, WriteStaged, ReleaseEngine, EndEngine,
                                RecordDecided, RecordSettled, PauseEngine>;

// The worker carries the orders out in the order in which they were added, and answers each with
// the call that the action names. An order that makes waiting ones void removes them: a worker that
// is busy for long finds few. Threads: safe from any.
class GroupOrders {
 public:
  void Add(const StageTarget& target);
  void Add(GroupOrder order);
  // The engine that pending releases were meant for is gone.
  void DropReleases();

  std::vector<GroupOrder> TakeAll();
  bool empty() const;
  // Returns whether the group still needs the version that is being staged for `order`.
  bool Wants(const StageOrder& order) const;

 private:
  template <typename Order>
  void Drop() REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::deque<GroupOrder> orders_ GUARDED_BY(mutex_);
  uint64_t attempt_ GUARDED_BY(mutex_) = 0;
};

}  // namespace dws
