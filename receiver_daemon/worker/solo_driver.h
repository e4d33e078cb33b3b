// Drives an engine that only this receiver serves: it brings the engine to the newest version that
// all trainer ranks offer, as soon as the commit policy allows it, and lets it run as soon as it
// has that version.
#pragma once

#include <cstdint>
#include <optional>

#include "common/sync_state/receiver_plan.h"
#include "receiver_daemon/engine/commit_boundary.h"
#include "receiver_daemon/worker/drift_watch.h"
#include "receiver_daemon/worker/version_driver.h"
#include "receiver_daemon/worker/version_runner.h"

namespace dws {

// Lifecycle: lives as long as the worker.
class SoloDriver final : public VersionDriver {
 public:
  struct Parts {
    Subscription& subscription;
    OperatorRequests& requests;
    const Clock& clock;
    LiveEngine& engine;
    DriftWatch& watch;
    VersionRunner& runner;
    WorkerBoard& board;
    CommitBoundary& boundary;
  };
  SoloDriver(const Parts& parts, const CommitPolicy& policy) : parts_(parts), policy_(policy) {}

  Status Round() override;
  void AfterRound(const Status& round) override;
  bool in_flight() const override { return false; }
  bool has_orders() const override { return false; }
  void DropPrepared() override;
  void BeforeForget() override {}
  void AfterForget(const StreamId&) override {}

 private:
  Status FollowTarget();
  Status Await();
  Status Resync(OperatorTask& task, const std::optional<SyncTarget>& target);
  Status Adopt(const SyncTarget& target);
  Status Advance(const SyncTarget& target, Way way);
  Status Commit(const Prepared& prepared);

  void DropStaged();
  // Prepares the version, unless it is staged.
  Status Stage(const SyncTarget& target, Way way);
  // Stages a version while the senders capture it. A failure is not reported as trouble: the
  // version is staged again when it is published.
  void StageEarly();
  bool IsStaged(const SyncTarget& target, Way way) const;
  // Returns whether the staged version still leads from the version in memory.
  bool StagedFits(Way way) const;
  // Commits a staged version that is older than `target`, if the policy no longer holds it back:
  // replacing it would put the commit off.
  Status CommitOlder(const SyncTarget& target, Way way);
  // Returns whether the staged version may be committed. If not, the engine's request or a boundary
  // wakes the worker.
  bool MayCommit(const SyncTarget& newest, Way way);
  Status CommitStaged();

  // For an engine that lets a commit happen only when it asks for one, and for the commit policy.
  struct Staged {
    Prepared prepared;
    Way way;
    std::optional<VersionAt> base;  // of memory, when it was prepared
    uint64_t drifts = 0;            // found until then
  };

  const Parts parts_;
  const CommitPolicy policy_;
  std::optional<Staged> staged_;
  std::optional<VersionAt> early_;  // the last version that was tried early
  int early_skips_ = 0;  // so many early deltas are passed over: the last one was too large
};

}  // namespace dws
