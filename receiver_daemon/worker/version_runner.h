// Takes the engine's memory from one version to another. The steps do not depend on who picks the
// version and releases the engine: prepare while the engine runs, commit in a pause, report.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "common/base/clock.h"
#include "common/base/threads/thread_pool.h"
#include "common/ledger/version_ledger.h"
#include "receiver_daemon/commit/commit_pipeline.h"
#include "receiver_daemon/commit/prepare.h"
#include "receiver_daemon/transfer/subscription.h"
#include "receiver_daemon/worker/live_engine.h"
#include "receiver_daemon/worker/worker_board.h"

namespace dws {

// A version that memory has, and that is not reported yet.
struct WrittenVersion {
  Prepared prepared;  // without the bytes that were written
  CommitReport report;
  uint64_t attach_mismatches = 0;
  TimePoint committing;  // when the commit began
  TimePoint committed;   // when memory had it, and the ledger
  bool first = false;    // memory was of no known version
  Duration pause = {};   // by the commit alone; zero: the engine was paused before
};

// Lifecycle: as long as the worker. Threads: the worker's.
class VersionRunner {
 public:
  struct Parts {
    Senders& senders;
    SourceChain& sources;
    ReceiverLedger& ledger;
    Subscription& subscription;
    ThreadPool& pool;
    const Clock& clock;
    Preparer& preparer;
    LiveEngine& engine;
    WorkerBoard& board;
    ServedWeights* served = nullptr;  // see LiveEngine
  };
  VersionRunner(const Parts& parts, Duration pause_timeout)
      : parts_(parts),
        pipeline_(parts.senders, parts.ledger, parts.pool, parts.clock, pause_timeout) {}

  // If memory has no known version but is exactly one that the ledger names, prepares a commit of
  // it, which writes nothing; else nullopt. Errors as Preparer::PrepareAdoption's, but ABORTED and
  // DATA_LOSS give nullopt.
  Result<std::optional<Prepared>> PrepareAdoption(const SyncTarget& target);
  // Like Preparer::Prepare; then tells the senders that the version is staged. For a target in the
  // making UNAVAILABLE and ABORTED say that the version was given up, is published differently than
  // it was captured, or takes too long: prepare it when it is published. RESOURCE_EXHAUSTED: it is
  // too large to be prepared early; prepare it, and later ones of its size, when they are
  // published.
  Result<Prepared> Prepare(const SyncTarget& target, Way way, const std::function<bool()>& wanted);
  // Returns whether something of the target is in the making, and all of that can be taken; a delta
  // only if memory is at its base.
  bool MayPrepareEarly(const SyncTarget& target) const;
  // Like CommitPipeline::Commit. The caller must call Report once the engine runs.
  Result<WrittenVersion> Commit(const Prepared& prepared, CommitPipeline::Release release);
  // Reports the version to the senders, operators and the log. `pause`: how long the engine was
  // paused for this version.
  void Report(WrittenVersion written, Duration pause, bool first_release);

 private:
  // Returns how the target is offered now; nullopt: not at all, or with other layouts.
  std::optional<SyncTarget> Now(const SyncTarget& target) const;
  // Returns how far its senders are with the target.
  EarlyVersion::Stage StageOf(const SyncTarget& target) const;
  // If memory has no known version but is exactly the oldest offered one, such as a checkpoint that
  // trainer and engine both began with, returns memory's state at that version, from which a delta
  // may lead. That version is not released.
  std::optional<LiveState> AsOldest(const SyncTarget& target) const;
  void OnPrepared(Prepared& prepared, TimePoint begun) const;
  CommitReport ReportOf(const Prepared& prepared) const;
  // The times from the announcement until the commit.
  VersionTimes TimesBefore(const Prepared& prepared) const;
  // When all ranks had announced the version and it could be looked at.
  TimePoint Offered(const Prepared& prepared) const;

  const Parts parts_;
  CommitPipeline pipeline_;
  bool stages_all_ = false;  // there was no memory to write tensors as they arrive
};

}  // namespace dws
