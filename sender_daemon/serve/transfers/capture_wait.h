// How a transfer of a version that is still being captured waits for the capture to go on.
#pragma once

#include <chrono>
#include <utility>

#include "common/base/clock.h"

namespace dws {

// Threads: one at a time.
class CaptureWait {
 public:
  // The capture is looked at so often, and given up after so long without the next piece: the
  // receiver then takes the version when it is published.
  static constexpr Duration kPoll = std::chrono::milliseconds(1);
  static constexpr Duration kMax = std::chrono::seconds(2);

  // There is nothing to send now. False: there was not for too long.
  bool Goes() {
    const TimePoint now = std::chrono::steady_clock::now();
    if (since_ == TimePoint()) since_ = now;
    return now - since_ < kMax;
  }
  // There is something; returns whether it was waited for.
  bool End() { return std::exchange(since_, TimePoint()) != TimePoint(); }

 private:
  TimePoint since_ = {};  // zero: it does not wait
};

}  // namespace dws
