// How a transfer of a version that is still being captured waits for the capture to go on.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/clock.h"

namespace dws {

// Threads: one at a time.
class CaptureWait {
 public:
  // Call it when there is nothing to send now. Returns false if that has lasted too long; then the
  // receiver takes the version when it is published.
  bool Goes() {
    const TimePoint now = std::chrono::steady_clock::now();
    if (since_ == TimePoint()) since_ = now;
    return now - since_ < kMax;
  }
  // Returns when to look at the capture again: later each time that it had nothing.
  Duration Poll() { return std::exchange(poll_, std::min<Duration>(2 * poll_, kPollMax)); }
  // There is something; returns whether it was waited for.
  bool End() {
    poll_ = kPollMin;
    return std::exchange(since_, TimePoint()) != TimePoint();
  }

 private:
  static constexpr Duration kPollMin = std::chrono::milliseconds(1);
  static constexpr Duration kPollMax = std::chrono::milliseconds(8);
  static constexpr Duration kMax = std::chrono::seconds(2);

  TimePoint since_ = {};  // zero: it does not wait
  Duration poll_ = kPollMin;
};

}  // namespace dws
