// What SlimeFollower shows: its view, and readiness. Whether a step makes progress is seen from
// outside of it, by beats: its own thread may be in a call that never returns.
#include <algorithm>
#include <chrono>
#include <utility>

#include "common/sync_state/presence_limits.h"
#include "receiver_daemon/follower/slime_follower.h"

namespace dws {

FollowerView SlimeFollower::view() const {
  MutexLock lock(mutex_);
  FollowerView view = view_;
  view.seconds_failing = ToSeconds(Failing());
  view.seconds_since_version = ToSeconds(parts_.clock.Now() - version_since_);
  return view;
}

void SlimeFollower::BeginStep() {
  MutexLock lock(mutex_);
  stepping_ = true;
  progress_at_ = parts_.clock.Now();
}

void SlimeFollower::EndStep(const Status& status) {
  {
    MutexLock lock(mutex_);
    stepping_ = false;
    view_.trouble = status.ok() ? "" : std::string(Message(status));
    watch_.Observe(status.ok(), parts_.clock.Now());
  }
  ShowReadiness();
}

void SlimeFollower::LookForProgress() {
  if (parts_.pulse == nullptr) return;
  const uint64_t beats = parts_.pulse->beats() + parts_.pool.pulse().beats();
  if (stepping_ && parts_.pulse->working() && beats == beats_) return;
  beats_ = beats;
  progress_at_ = parts_.clock.Now();
}

Duration SlimeFollower::Still() const {
  if (parts_.pulse == nullptr || !stepping_) return Duration::zero();
  const Duration still = parts_.clock.Now() - progress_at_;
  return still >= limits::kStepStillMax ? still : Duration::zero();
}

Duration SlimeFollower::Failing() const {
  return std::max(watch_.Without(parts_.clock.Now()), Still());
}

std::string SlimeFollower::StaleReason() const {
  if (Failing() < options_.stale.after) return "";
  return fmt::format(
      "the folder could not be followed for more than {} s: {}",
      std::chrono::ceil<std::chrono::seconds>(options_.stale.after).count(),
      Still() > Duration::zero()
          ? fmt::format("'{}' makes no progress: does the folder's mount hang?", view_.stage)
          : view_.trouble);
}

void SlimeFollower::ShowReadiness() {
  MutexLock telling(telling_mutex_);
  bool ready = false;
  std::string reason;
  {
    MutexLock lock(mutex_);
    LookForProgress();
    const bool loaded = !view_.has_engine || view_.loaded.has_value();
    // An engine that runs goes on with what it has.
    ready = view_.version.has_value() && loaded;
    if (!ready) {
      reason = !view_.trouble.empty()       ? view_.trouble
               : !view_.version.has_value() ? "the local checkpoint is being opened"
                                            : "the engine has not loaded the checkpoint";
    } else if (const std::string stale = StaleReason(); !stale.empty()) {
      ready = options_.stale.keeps_ready;
      if (!ready) reason = stale;
    }
  }
  if (std::pair now(ready, std::move(reason)); told_ != now) {
    told_ = std::move(now);
    parts_.on_readiness(told_->first, told_->second);
  }
}

}  // namespace dws
