// How long a place that fails is left alone, where there is another one: ten times as long as the
// failure took, so that it costs a tenth of the time, and not longer than a place may take to come
// back. Pure.
#pragma once

#include <algorithm>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace dws {

inline constexpr std::chrono::seconds kFailurePauseMax{60};

// Threads: one at a time.
class FailurePause {
 public:
  // OK: it may be asked. UNAVAILABLE: it is left alone, and how it failed, in words that stay the
  // same.
  Status MayAsk(TimePoint now) const {
    if (now >= until_) return OkStatus();
    return UnavailableError("left alone for up to {} s since it failed: {}",
                            kFailurePauseMax.count(), Message(why_));
  }
  // Errors that tell something of the version, and not of the place, make no pause.
  void Note(const Status& status, Duration took, TimePoint now) {
    const bool fails = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
                       absl::IsPermissionDenied(status);
    why_ = status;
    until_ = fails ? now + std::min<Duration>(10 * took, kFailurePauseMax) : TimePoint();
  }

 private:
  TimePoint until_;
  Status why_;
};

}  // namespace dws
