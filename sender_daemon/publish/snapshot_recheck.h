// What follows when a receiver refuses slices whose digests do not fit: the sender looks whether it
// is its own memory that is wrong. A damaged slice is distrusted, and the next version that brings
// the tensor mends it; without this, receivers would refuse that tensor in every version to come.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "common/base/executor.h"
#include "sender_daemon/publish/rank_state.h"

namespace dws {

// Lifecycle: Stop, or the destructor, waits for the slice that is being read. Threads: safe from
// any.
class SnapshotRecheck {
 public:
  // `on_damaged`: on its own thread, for each slice whose damage is news.
  explicit SnapshotRecheck(std::function<void()> on_damaged);

  // Never blocks. Numbers that are no slices are ignored; when too much waits already, all of it:
  // who goes on refusing asks again.
  void Ask(RankStatePtr state, std::vector<RankSlice> slices);
  void Stop();

 private:
  void Check(const RankState& state, const std::vector<RankSlice>& slices);

  const std::function<void()> on_damaged_;
  std::atomic<bool> stopping_{false};
  Executor executor_;
};

}  // namespace dws
