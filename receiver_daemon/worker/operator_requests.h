// Operators' requests to the worker and their results: a queue between the threads of the calls and
// the worker's thread. Decides nothing, touches no memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/model/digest/digest.h"
#include "common/model/layout.h"
#include "common/model/stream_id.h"
#include "common/model/weight_version.h"
#include "common/service/peers/change_signal.h"

namespace dws {

// A slice whose live memory differs from what was published.
struct SliceMismatch {
  std::string tensor;
  TrainerRank rank;
  RankSlice slice;
  WeightVersion version;  // that it was compared at
  Digest expected;
  std::optional<Digest> found;  // none: copies in the engine differ from each other
};

// The progress of an operator's request.
struct TaskProgress {
  std::string step;  // in words
  uint64_t done_bytes = 0;
  uint64_t total_bytes = 0;
  std::optional<WeightVersion> version;  // compared or committed last
  uint64_t mismatches = 0;
  std::vector<SliceMismatch> mismatched;  // the first limits::kMismatchesNamedMax
};

// One Verify or Resync on its way. Threads: safe from any.
class OperatorTask {
 public:
  explicit OperatorTask(bool full) : full_(full) {}

  bool full() const { return full_; }  // Resync: every slice in full

  // The caller's side.
  void Cancel() { cancelled_.store(true); }
  // Waits until it has ended, at most for `timeout`. Returns the outcome if it has ended.
  std::optional<Status> Await(Duration timeout);
  TaskProgress progress() const;

  // The worker's side.
  bool cancelled() const { return cancelled_.load(); }
  void Update(const std::function<void(TaskProgress&)>& change);
  void End(const Status& outcome);  // a second call does nothing

 private:
  const bool full_;
  std::atomic<bool> cancelled_{false};
  mutable Mutex mutex_;
  CondVar ended_;
  TaskProgress progress_ GUARDED_BY(mutex_);
  std::optional<Status> outcome_ GUARDED_BY(mutex_);
};

enum class DrainStage { kNone, kDraining, kDrained };

using OperatorTaskPtr = std::shared_ptr<OperatorTask>;

// A stream to forget.
struct ForgetTask {
  StreamId stream;
  OperatorTaskPtr task;
};

// Threads: safe from any.
class OperatorRequests {
 public:
  explicit OperatorRequests(ChangeSignal& changed) : changed_(changed) {}

  // The caller's side. UNAVAILABLE: the receiver is stopping.
  // RESOURCE_EXHAUSTED: too many wait already.
  Result<OperatorTaskPtr> Verify();
  // Only one runs at a time: if the same is asked for meanwhile, the running task is returned.
  // FAILED_PRECONDITION: the running task is less than what is asked for.
  Result<OperatorTaskPtr> Resync(bool full);
  Result<OperatorTaskPtr> Forget(const StreamId& stream);
  // Stays until it is changed.
  void SetDraining(bool draining);
  // The stage now, after waiting for `wanted` for `timeout` at most. From any thread.
  DrainStage AwaitDrain(DrainStage wanted, Duration timeout);
  DrainStage drain() const;

  // The worker's side.
  std::vector<OperatorTaskPtr> TakeVerifies();  // the requests that came since the last call
  std::vector<ForgetTask> TakeForgets();        // the same
  OperatorTaskPtr resync() const;               // null: none
  void EndResync(const Status& outcome);
  bool draining() const;
  // Returns whether somebody waits for the worker.
  bool has_orders() const;
  void SetDrained(bool drained);  // the worker does or does not commit from now on
  // Ends everything, and all that comes later.
  void Close(const Status& reason);

 private:
  ChangeSignal& changed_;
  mutable Mutex mutex_;
  std::optional<Status> closed_ GUARDED_BY(mutex_);
  CondVar drain_changed_;
  bool draining_ GUARDED_BY(mutex_) = false;
  bool drained_ GUARDED_BY(mutex_) = false;
  DrainStage Stage() const REQUIRES(mutex_);
  std::vector<OperatorTaskPtr> verifies_ GUARDED_BY(mutex_);
  std::vector<ForgetTask> forgets_ GUARDED_BY(mutex_);
  OperatorTaskPtr resync_ GUARDED_BY(mutex_);
};

}  // namespace dws
