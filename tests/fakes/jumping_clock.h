// Real time plus the time that the test adds, for parts with their own threads.
#pragma once

#include <atomic>

#include "common/base/clock.h"

namespace dws {

// Threads: safe from any.
class JumpingClock final : public Clock {
 public:
  TimePoint Now() const override { return RealClock().Now() + added_.load(); }
  void Jump(Duration by) { added_.store(added_.load() + by); }

 private:
  std::atomic<Duration> added_{Duration::zero()};
};

}  // namespace dws
