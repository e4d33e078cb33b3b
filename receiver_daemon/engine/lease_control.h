// EngineControl over the leases of all ranks of one engine.
#pragma once

#include <memory>
#include <vector>

#include "common/base/clock.h"
#include "common/base/threads/liveness.h"
#include "receiver_daemon/engine/engine_control.h"
#include "receiver_daemon/engine/engine_lease.h"

namespace dws {

// Keeps the leases alive. Threads: one at a time, as EngineControl.
class LeaseControl final : public EngineControl {
 public:
  // `liveness` is marked as waiting during Pause and PostCommit; may be null.
  LeaseControl(std::vector<std::shared_ptr<EngineLease>> leases, const Clock& clock,
               Liveness* liveness = nullptr)
      : leases_(std::move(leases)), clock_(clock), liveness_(liveness) {}

  Status Pause(Duration timeout) override;
  Duration StoppedFor() const override;
  void OnWriteBegin(const TensorContents& contents) override;
  Status PostCommit(WeightVersion version, Duration timeout) override;
  // Always OK: a rank that is gone has lost its lease, and attaches again paused.
  Status Resume(const EngineVersion& version) override;

 private:
  using AwaitOne = Status (EngineLease::*)(TimePoint deadline, const Clock& clock);
  // UNAVAILABLE as soon as any rank is gone.
  Status AwaitAll(Duration timeout, AwaitOne await) const;

  const std::vector<std::shared_ptr<EngineLease>> leases_;
  const Clock& clock_;
  Liveness* const liveness_;
};

}  // namespace dws
