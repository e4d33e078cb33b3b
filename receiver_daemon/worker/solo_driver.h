// Drives an engine that is served by this receiver alone: to the newest version that all trainer
// ranks offer, and it runs as soon as it is there.
#pragma once

#include <optional>

#include "receiver_daemon/worker/drift_watch.h"
#include "receiver_daemon/worker/version_driver.h"
#include "receiver_daemon/worker/version_runner.h"

namespace dws {

// Lifecycle: as long as the worker.
class SoloDriver final : public VersionDriver {
 public:
  struct Parts {
    Subscription& subscription;
    OperatorDesk& desk;
    const Clock& clock;
    LiveEngine& engine;
    DriftWatch& watch;
    VersionRunner& runner;
    WorkerBoard& board;
  };
  explicit SoloDriver(const Parts& parts) : parts_(parts) {}

  Status Round() override;
  void AfterRound(const Status& round) override;
  bool in_flight() const override { return false; }
  void DropPrepared() override {}
  void BeforeForget() override {}
  void AfterForget(const StreamId&) override {}

 private:
  Status FollowTarget();
  Status Await();
  Status Resync(OperatorTask& task, const std::optional<SyncTarget>& target);
  Status Adopt(const SyncTarget& target);
  Status Advance(const SyncTarget& target, Way way);
  Status Commit(const Prepared& prepared, TimePoint begin);

  const Parts parts_;
};

}  // namespace dws
