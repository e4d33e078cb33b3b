// How a sender ends.
#include <utility>

#include "common/base/log.h"
#include "common/model/limits.h"
#include "sender_daemon/sender_app.h"

namespace dws {

// 1. nothing new: waits, Sync streams and operators' calls end, who comes is told that we stop
// 2. the trainer's calls that were taken before get the grace
// 3. calls that only watch, or transfer what can be asked for again, end with the servers
// 4. what was captured is recorded, if the disk lets us, and reaches the folders it is published to
// Calls end before what they use, and executors before the sockets of their tasks.
void SenderApp::Stop(std::chrono::milliseconds grace) {
  if (std::exchange(stopped_, true)) return;
  const TimePoint deadline = clock_.Now() + grace;
  lifecycle_.SetStopping();
  if (hub_ != nullptr) hub_->Stop();  // 1
  if (broadcaster_ != nullptr) broadcaster_->Stop();
  if (servers_ != nullptr) servers_->StopOperators();
  if (trainer_executor_ != nullptr && !AwaitTrainerCalls(deadline)) {  // 2
    LogWarning("stopped_during_a_call_of_the_trainer");
  }
  if (servers_ != nullptr) servers_->Shutdown();  // 3
  if (trainer_executor_ != nullptr) trainer_executor_->Stop();
  handles_.reset();
  if (delta_executor_ != nullptr) delta_executor_->Stop();
  if (full_executor_ != nullptr) full_executor_->Stop();
  if (recheck_ != nullptr) recheck_->Stop();
  if (pipeline_ == nullptr) return;
  if (!AwaitRecords(deadline)) LogWarning("stopped_before_recording");  // 4
  pipeline_->Stop();
  if (shared_publisher_ != nullptr) {
    AwaitPublisher([this] { return shared_publisher_->settled(); }, deadline, "shared-dir");
    shared_publisher_->Stop();
  }
  if (slime_publisher_ != nullptr) {
    AwaitPublisher([this] { return slime_publisher_->settled(); }, deadline, "slime-dir");
    slime_publisher_->Stop();
  }
}

void SenderApp::EndGrace() {
  MutexLock lock(stop_mutex_);
  grace_over_ = true;
  stop_changed_.NotifyAll();
}

// The executor runs calls in their order, so a task at the end of its queue comes after all of
// them.
bool SenderApp::AwaitTrainerCalls(TimePoint deadline) {
  const bool posted = trainer_executor_->Post([this] {
    MutexLock lock(stop_mutex_);
    trainer_calls_ended_ = true;
    stop_changed_.NotifyAll();
  });
  MutexLock lock(stop_mutex_);
  while (posted && !trainer_calls_ended_ && !grace_over_ && clock_.Now() < deadline) {
    stop_changed_.WaitFor(stop_mutex_, deadline - clock_.Now());
  }
  return trainer_calls_ended_;
}

bool SenderApp::AwaitRecords(TimePoint deadline) {
  while (!pipeline_->Drain(limits::kTick).ok()) {
    MutexLock lock(stop_mutex_);
    if (grace_over_ || clock_.Now() >= deadline) return false;
  }
  return true;
}

void SenderApp::AwaitPublisher(const std::function<bool()>& settled, TimePoint deadline,
                               std::string_view what) {
  while (!settled()) {
    MutexLock lock(stop_mutex_);
    if (grace_over_ || clock_.Now() >= deadline) {
      LogWarning("stopped_before_publishing", {{"to", what}});
      return;
    }
    stop_changed_.WaitFor(stop_mutex_, limits::kTick);
  }
}

}  // namespace dws
