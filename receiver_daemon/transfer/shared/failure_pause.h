// How long a place that fails is left alone, where there is another one: ten times as long as the
// failure took, and not longer than a place may take to come back.
#pragma once

#include <algorithm>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"

namespace dws {

inline constexpr std::chrono::seconds kFailurePauseMax{60};

// A place is asked for all trainer ranks: when it fails for one, it is left alone for all. Threads:
// safe from any.
class FailurePause {
 public:
  // OK: it may be asked. UNAVAILABLE: it is left alone, and how it failed, in words that stay the
  // same.
  Status MayAsk(TimePoint now) const {
    MutexLock lock(mutex_);
    if (now >= until_) return OkStatus();
    return UnavailableError("left alone for up to {} s since it failed: {}",
                            kFailurePauseMax.count(), Message(why_));
  }
  // Errors that tell something of the version, and not of the place, make no pause.
  void Note(const Status& status, Duration took, TimePoint now) {
    const bool fails = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
                       absl::IsPermissionDenied(status);
    MutexLock lock(mutex_);
    why_ = status;
    until_ = fails ? now + std::min<Duration>(10 * took, kFailurePauseMax) : TimePoint();
  }
  // It may be asked again.
  void End() {
    MutexLock lock(mutex_);
    until_ = TimePoint();
  }

 private:
  mutable Mutex mutex_;
  TimePoint until_ GUARDED_BY(mutex_);
  Status why_ GUARDED_BY(mutex_);
};

}  // namespace dws
