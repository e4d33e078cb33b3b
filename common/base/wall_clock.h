// The seam between DWS and the time of day. It is for numbers that begin at the wall clock and are
// bounded by it (common/model/clock_bound.h). Waits use clock.h instead.
#pragma once

#include <chrono>

namespace dws {

// Microseconds since 1970.
using UnixTime = std::chrono::time_point<std::chrono::system_clock, std::chrono::microseconds>;

// Threads: safe from any.
class WallClock {
 public:
  virtual ~WallClock() = default;
  virtual UnixTime Now() const = 0;
};

// The system's time of day.
class RealWallClock final : public WallClock {
 public:
  UnixTime Now() const override {
    return std::chrono::time_point_cast<std::chrono::microseconds>(
        std::chrono::system_clock::now());
  }
};

// The system's wall clock. It has no state.
inline const RealWallClock kSystemWallClock;

}  // namespace dws
