#include "common/service/grpc/egress_limit.h"

#include <algorithm>
#include <chrono>

namespace dws {
namespace {

// What may be sent at once after a silence.
constexpr std::chrono::milliseconds kBurst{20};

}  // namespace

Duration EgressLimit::Reserve(uint64_t bytes) {
  if (bytes_per_second_ == 0) return Duration::zero();
  const TimePoint now = clock_.Now();
  const auto takes = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(
      static_cast<double>(bytes) / static_cast<double>(bytes_per_second_)));
  MutexLock lock(mutex_);
  free_at_ = std::max(free_at_, now - kBurst);
  const TimePoint begin = free_at_;
  free_at_ += takes;
  return std::max(begin - now, Duration::zero());
}

}  // namespace dws
