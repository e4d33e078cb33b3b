// The seam between DWS and time. Production uses RealClock; tests and the simulation drive their
// own.
#pragma once

#include <chrono>

namespace dws {

// Monotonic nanoseconds since an arbitrary start.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, std::chrono::nanoseconds>;
using Duration = std::chrono::nanoseconds;

inline double ToSeconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// Threads: safe from any.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
};

// The system's steady clock.
class RealClock final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace dws
