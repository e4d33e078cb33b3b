// Drives an engine rank as a member of a commit group (protocol.md §6): carries out CommitGroup's
// orders, and reports to it the results and the state of the engine. On its own it commits nothing
// and releases nothing; without an order it only proves which version memory has, and pauses for
// drift.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "common/ledger/version_ledger.h"
#include "common/sync_state/receiver_plan.h"
#include "receiver_daemon/engine/commit_boundary.h"
#include "receiver_daemon/group/commit_group.h"
#include "receiver_daemon/worker/drift_watch.h"
#include "receiver_daemon/worker/version_driver.h"
#include "receiver_daemon/worker/version_runner.h"

namespace dws {

// Lifecycle: lives as long as the worker.
class GroupDriver final : public VersionDriver {
 public:
  struct Parts {
    CommitGroup& group;
    Subscription& subscription;
    EngineRegistry& registry;
    ReceiverLedger& ledger;
    OperatorRequests& requests;
    const Clock& clock;
    LiveEngine& engine;
    DriftWatch& watch;
    VersionRunner& runner;
    WorkerBoard& board;
    CommitBoundary& boundary;
    const std::atomic<bool>& stopping;
  };
  explicit GroupDriver(const Parts& parts)
      : parts_(parts), engine_(parts.engine), board_(parts.board) {}

  Status Round() override;
  void AfterRound(const Status& round) override;
  bool in_flight() const override { return work_.staged.has_value(); }
  bool has_orders() const override { return !parts_.group.orders().empty(); }
  void DropPrepared() override { work_.staged.reset(); }
  void BeforeForget() override { TellEngine(); }
  void AfterForget(const StreamId& stream) override;

 private:
  struct ToStage {
    StageOrder order;
    TimePoint deadline;  // for hearing of the version
  };
  struct Staged {
    GroupNonce round;
    Prepared prepared;
    uint64_t drifts = 0;  // found until then
    bool resync = false;  // true if an operator's resync wants it
    bool drain_told = false;
  };
  // The work in progress between two orders, for one engine.
  struct Work {
    std::optional<Generation> told;  // the engine that the group has heard of
    std::optional<ToStage> to_stage;
    std::optional<Staged> staged;
    std::optional<WrittenVersion> written;  // committed and not yet released
    uint64_t adoption_tried_at = 0;         // LiveEngine::readings
    uint64_t drifts_told = 0;
    std::optional<TimePoint> paused_since;  // for the group, from running
    std::string trouble;                    // of the last staging
  };

  void TellEngine();
  Status TellDrift();
  void TellDrain();
  // On the leader: lets a held round commit at a boundary.
  void LookAtBoundary();
  void Settle();
  Status Adopt(const SyncTarget& target);
  Status Resync();
  void ObeyGroup();
  void Obey(const StageOrder& order);
  void Obey(const DropStaged& order);
  void Obey(const PauseEngine& order);
  void Obey(const WriteStaged& order);
  void Obey(const ReleaseEngine& order);
  void Obey(const EndEngine& order);
  void Obey(const RecordDecided& order);
  void Obey(const RecordSettled& order);
  bool Stage();  // false: there is nothing to stage, or not yet
  Result<Prepared> Prepare(const StageOrder& order, const SyncTarget& target, bool resync);
  Status Commit(const Prepared& prepared);
  void NotePause(TimePoint since);
  // No version is tried: it is drained, or its engine has the newest one that is offered.
  bool HasNothingToReach() const;
  void Show();

  const Parts parts_;
  LiveEngine& engine_;
  WorkerBoard& board_;
  Work work_;
  std::optional<GroupNonce> committing_;  // the round that was allowed to commit at a boundary
};

}  // namespace dws
