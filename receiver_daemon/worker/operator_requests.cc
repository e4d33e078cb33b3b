#include "receiver_daemon/worker/operator_requests.h"

#include "common/model/limits.h"

namespace dws {

std::optional<Status> OperatorTask::Await(Duration timeout) {
  MutexLock lock(mutex_);
  if (!outcome_.has_value()) ended_.WaitFor(mutex_, timeout);
  return outcome_;
}

TaskProgress OperatorTask::progress() const {
  MutexLock lock(mutex_);
  return progress_;
}

void OperatorTask::Update(const std::function<void(TaskProgress&)>& change) {
  MutexLock lock(mutex_);
  change(progress_);
}

void OperatorTask::End(const Status& outcome) {
  MutexLock lock(mutex_);
  if (!outcome_.has_value()) outcome_ = outcome;
  ended_.NotifyAll();
}

// Requests are queued here and the worker takes them between two steps: only its thread may touch
// the engine's memory.
Result<OperatorTaskPtr> OperatorRequests::Verify() {
  auto task = std::make_shared<OperatorTask>(false);
  {
    MutexLock lock(mutex_);
    if (closed_.has_value()) return *closed_;
    if (verifies_.size() >= limits::kAdminStreamsMax) {
      return ResourceExhaustedError("{} verifications wait already", verifies_.size());
    }
    verifies_.push_back(task);
  }
  changed_.Notify();
  return task;
}

Result<OperatorTaskPtr> OperatorRequests::Forget(const StreamId& stream) {
  auto task = std::make_shared<OperatorTask>(false);
  {
    MutexLock lock(mutex_);
    if (closed_.has_value()) return *closed_;
    if (forgets_.size() >= limits::kAdminStreamsMax) {
      return ResourceExhaustedError("{} streams to forget wait already", forgets_.size());
    }
    forgets_.push_back({.stream = stream, .task = task});
  }
  changed_.Notify();
  return task;
}

std::vector<ForgetTask> OperatorRequests::TakeForgets() {
  MutexLock lock(mutex_);
  return std::exchange(forgets_, {});
}

Result<OperatorTaskPtr> OperatorRequests::Resync(bool full) {
  OperatorTaskPtr task;
  {
    MutexLock lock(mutex_);
    if (closed_.has_value()) return *closed_;
    if (draining_) {
      return FailedPreconditionError(
          "the receiver is drained, and a resync commits: undo the drain first");
    }
    if (resync_ != nullptr && full && !resync_->full()) {
      return FailedPreconditionError(
          "a resync of the slices that differ is in progress: ask for the full one when it has "
          "ended");
    }
    // If two operators ask for the same resync, both follow one task.
    if (resync_ == nullptr) resync_ = std::make_shared<OperatorTask>(full);
    task = resync_;
  }
  changed_.Notify();
  return task;
}

void OperatorRequests::SetDraining(bool draining) {
  {
    MutexLock lock(mutex_);
    draining_ = draining;
  }
  changed_.Notify();
}

std::vector<OperatorTaskPtr> OperatorRequests::TakeVerifies() {
  MutexLock lock(mutex_);
  return std::exchange(verifies_, {});
}

OperatorTaskPtr OperatorRequests::resync() const {
  MutexLock lock(mutex_);
  return resync_;
}

void OperatorRequests::EndResync(const Status& outcome) {
  MutexLock lock(mutex_);
  if (resync_ != nullptr) resync_->End(outcome);
  resync_.reset();
}

bool OperatorRequests::has_orders() const {
  MutexLock lock(mutex_);
  return draining_ || !verifies_.empty() || !forgets_.empty() || resync_ != nullptr;
}

bool OperatorRequests::draining() const {
  MutexLock lock(mutex_);
  return draining_;
}

void OperatorRequests::SetDrained(bool drained) {
  MutexLock lock(mutex_);
  drained_ = drained;
  drain_changed_.NotifyAll();
}

DrainStage OperatorRequests::Stage() const {
  if (drained_) return DrainStage::kDrained;
  return draining_ ? DrainStage::kDraining : DrainStage::kNone;
}

DrainStage OperatorRequests::drain() const {
  MutexLock lock(mutex_);
  return Stage();
}

DrainStage OperatorRequests::AwaitDrain(DrainStage wanted, Duration timeout) {
  MutexLock lock(mutex_);
  if (Stage() != wanted) drain_changed_.WaitFor(mutex_, timeout);
  return Stage();
}

void OperatorRequests::Close(const Status& reason) {
  MutexLock lock(mutex_);
  closed_ = reason;
  for (const OperatorTaskPtr& task : verifies_) task->End(reason);
  for (const ForgetTask& asked : forgets_) asked.task->End(reason);
  if (resync_ != nullptr) resync_->End(reason);
  verifies_.clear();
  forgets_.clear();
  resync_.reset();
}

}  // namespace dws
