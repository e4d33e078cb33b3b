// When a receiver refuses slices because their digests do not match, checks whether the sender's
// own memory is damaged. A damaged slice is distrusted, and the next version that brings the tensor
// corrects it. Without this, receivers would refuse the tensor in every later version.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "common/base/threads/executor.h"
#include "sender_daemon/publish/rank_state.h"

namespace dws {

// Lifecycle: Stop, or the destructor, waits until the current slice is read. Threads: safe from
// any.
class SnapshotRecheck {
 public:
  // `on_damaged`: called on its own thread, for each slice newly found damaged.
  explicit SnapshotRecheck(std::function<void()> on_damaged);

  // Never blocks. Ignores numbers that are no slices. When its queue is full it ignores the
  // request: a receiver that still refuses asks again.
  void Ask(RankStatePtr state, std::vector<RankSlice> slices);
  void AskAll(RankStatePtr state);
  void Stop();

 private:
  void Check(const RankState& state, const std::vector<RankSlice>& slices);

  const std::function<void()> on_damaged_;
  std::atomic<bool> stopping_{false};
  Executor executor_;
};

}  // namespace dws
