#include "receiver_daemon/engine/lease_control.h"

namespace dws {

Status LeaseControl::Pause(Duration timeout) {
  const PulseWait wait(pulse_);
  const TimePoint deadline = clock_.Now() + timeout;
  for (const auto& lease : leases_) lease->RequestPause();
  for (const auto& lease : leases_) DWS_RETURN_IF_ERROR(lease->AwaitPaused(deadline, clock_));
  return OkStatus();
}

Status LeaseControl::PostCommit(WeightVersion version, Duration timeout) {
  const PulseWait wait(pulse_);
  const TimePoint deadline = clock_.Now() + timeout;
  for (const auto& lease : leases_) {
    if (lease->has_hook()) lease->RequestPostCommit(version);
  }
  for (const auto& lease : leases_) {
    if (lease->has_hook()) DWS_RETURN_IF_ERROR(lease->AwaitPostCommit(deadline, clock_));
  }
  return OkStatus();
}

Status LeaseControl::Resume(const EngineVersion& version) {
  for (const auto& lease : leases_) lease->Resume(version);
  return OkStatus();
}

}  // namespace dws
