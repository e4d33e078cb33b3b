#include "receiver_daemon/engine/lease_control.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/model/limits.h"

namespace dws {

Status LeaseControl::AwaitAll(Duration timeout, AwaitOne await) const {
  DWS_CHECK(!leases_.empty());  // else OK would mean that nobody was asked
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
        Status gone = other->AwaitPaused(now, clock_);
        DWS_CHECK(!gone.ok());  // a lease that has ended stays so
        return gone;
      }
    }
  }
  return OkStatus();
}

Status LeaseControl::Pause(Duration timeout) {
  const WaitScope wait(liveness_);
  for (const auto& lease : leases_) lease->RequestPause();
  return AwaitAll(timeout, &EngineLease::AwaitPaused);
}

// Ranks answer at different times: the shortest time is of the one that stopped last, or shorter.
Duration LeaseControl::StoppedFor() const {
  Duration shortest = Duration::max();
  for (const auto& lease : leases_) shortest = std::min(shortest, lease->stopped_for());
  return shortest;
}

void LeaseControl::OnWriteBegin(const TensorContents& contents) {
  for (const auto& lease : leases_) lease->OnWriteBegin(contents);
}

Status LeaseControl::PostCommit(WeightVersion version, Duration timeout) {
  const WaitScope wait(liveness_);
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
