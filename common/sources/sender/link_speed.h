// How fast deltas come from one sender, and which encoding of them follows from it.
#pragma once

#include <cstdint>

#include "common/base/clock.h"
#include "common/base/threads/mutex.h"
#include "common/model/delta_profile.h"
#include "common/model/full_cost.h"
#include "common/model/limits.h"

namespace dws {

// Threads: safe from any.
class LinkSpeed {
 public:
  // A transfer that ended. Short ones are latency, not bandwidth, and are not counted.
  void Add(uint64_t bytes, Duration took) {
    if (bytes < limits::kLinkSampleBytesMin || took <= Duration::zero()) return;
    const double sample = static_cast<double>(bytes) / ToSeconds(took);
    MutexLock lock(mutex_);
    bytes_per_second_ =
        bytes_per_second_ == 0 ? sample : bytes_per_second_ * kKeep + sample * (1 - kKeep);
  }

  // Auto: the profile that fits the measured speed of the link.
  DeltaProfile Choose(ProfileChoice choice) const {
    if (const auto decided = Decided(choice)) return *decided;
    MutexLock lock(mutex_);
    if (bytes_per_second_ == 0) return DeltaProfile::kFast;
    if (bytes_per_second_ < limits::kWanBytesPerSecond) return DeltaProfile::kWan;
    return bytes_per_second_ > kDirectBytesPerSecond ? DeltaProfile::kDirect : DeltaProfile::kFast;
  }

 private:
  static constexpr double kKeep = 0.7;  // weight of earlier transfers

  mutable Mutex mutex_;
  double bytes_per_second_ GUARDED_BY(mutex_) = 0;  // 0: not measured
};

}  // namespace dws
