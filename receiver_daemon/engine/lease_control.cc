#include "receiver_daemon/engine/lease_control.h"

#include <algorithm>

#include "common/model/limits.h"

namespace dws {

Status LeaseControl::AwaitAll(Duration timeout, AwaitOne await) const {
  const TimePoint deadline = clock_.Now() + timeout;
  for (const auto& lease : leases_) {
    while (true) {
      const TimePoint now = clock_.Now();
      const Status status =
          (*lease.*await)(std::min<TimePoint>(deadline, now + limits::kTick), clock_);
      if (status.ok()) break;
      if (!absl::IsDeadlineExceeded(status) || now >= deadline) return status;
      // Do not wait for the others once a rank is gone: its memory should be released soon.
      for (const auto& other : leases_) {
        if (other->state() != EngineLease::State::kEnded) continue;
        return other->AwaitPaused(now, clock_);
      }
    }
  }
  return OkStatus();
}

Status LeaseControl::Pause(Duration timeout) {
  const PulseWait wait(pulse_);
  for (const auto& lease : leases_) lease->RequestPause();
  return AwaitAll(timeout, &EngineLease::AwaitPaused);
}

Status LeaseControl::PostCommit(WeightVersion version, Duration timeout) {
  const PulseWait wait(pulse_);
  for (const auto& lease : leases_) {
    if (lease->has_hook()) lease->RequestPostCommit(version);
  }
  return AwaitAll(timeout, &EngineLease::AwaitPostCommit);
}

Status LeaseControl::Resume(const EngineVersion& version) {
  for (const auto& lease : leases_) lease->Resume(version);
  return OkStatus();
}

}  // namespace dws
