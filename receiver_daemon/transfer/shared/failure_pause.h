// How long a place that fails is left alone, where there is another one: ten times as long as the
// failure took, so that it costs a tenth of the time at most.
#pragma once

#include "common/base/clock.h"
#include "common/base/status.h"

namespace dws {

// Threads: one at a time.
class FailurePause {
 public:
  // OK: it may be asked. Otherwise how it failed.
  Status MayAsk(TimePoint now) const { return now >= until_ ? OkStatus() : why_; }
  // Errors that tell something of the version, and not of the place, make no pause.
  void Note(const Status& status, Duration took, TimePoint now) {
    const bool fails = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
                       absl::IsPermissionDenied(status);
    why_ = status;
    until_ = fails ? now + 10 * took : TimePoint();
  }

 private:
  TimePoint until_;
  Status why_;
};

}  // namespace dws
