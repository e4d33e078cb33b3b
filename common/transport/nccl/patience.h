// How long a caller waits for something that it can only poll: NCCL and CUDA give no notification
// when they are done.
#pragma once

#include <algorithm>
#include <functional>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/cancellation.h"

namespace dws::nccl {

// Lifecycle: one for each wait. Threads: one.
class Patience {
 public:
  // Waits until `deadline`, or until `given_up` returns true. `clock` must outlive it.
  Patience(const Clock& clock, TimePoint deadline, std::function<bool()> given_up)
      : clock_(clock), deadline_(deadline), given_up_(std::move(given_up)) {}

  // Lets some time pass before the next check, only little at first. DEADLINE_EXCEEDED, CANCELLED:
  // the wait is over; `what` names the event that did not happen.
  Status Pause(const char* what) {
    if (given_up_ && given_up_()) return CancelledError("{} was cancelled", what);
    const TimePoint now = clock_.Now();
    if (now >= deadline_) return DeadlineExceededError("{} did not end within its deadline", what);
    never_.Sleep(std::min<Duration>(pause_, deadline_ - now));
    pause_ = std::min<Duration>(pause_ + pause_ / 4, kPauseMax);
    return OkStatus();
  }
  // Begins the next wait: polls often again.
  void Progressed() { pause_ = kPauseMin; }

 private:
  static constexpr std::chrono::microseconds kPauseMin{20};
  static constexpr std::chrono::microseconds kPauseMax{1000};

  const Clock& clock_;
  const TimePoint deadline_;
  const std::function<bool()> given_up_;
  Duration pause_ = kPauseMin;
  Cancellation never_;
};

}  // namespace dws::nccl
