// Takes the engine's memory from one version to another, with the same steps whoever picks the
// version and releases the engine: prepare while it runs, commit in a pause, report.
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
  TimePoint committing;  // since then
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
  };
  VersionRunner(const Parts& parts, Duration pause_timeout)
      : parts_(parts),
        pipeline_(parts.senders, parts.ledger, parts.pool, parts.clock, pause_timeout) {}

  // When memory of no known version may be one that the ledger names, and is exactly that: a commit
  // of it, which writes nothing. Errors of Preparer::PrepareAdoption.
  Result<std::optional<Prepared>> PrepareAdoption(const SyncTarget& target);
  // As Preparer::Prepare; then the senders know that it is staged.
  Result<Prepared> Prepare(const SyncTarget& target, Way way, const std::function<bool()>& wanted);
  // Whether all that is early of the target can be taken: deltas only from what memory has.
  bool MayPrepareEarly(const SyncTarget& target) const;
  // As Preparer::PrepareEarly; then as Prepare. UNAVAILABLE, ABORTED: it was given up, is published
  // otherwise than it was captured for, or takes too long: it is taken when it is published.
  // RESOURCE_EXHAUSTED: likewise, and the next ones of its size too.
  Result<Prepared> PrepareEarly(const SyncTarget& target, const std::function<bool()>& wanted);
  // As CommitPipeline::Commit; then Report is due, once the engine runs.
  Result<WrittenVersion> Commit(const Prepared& prepared, CommitPipeline::Release release);
  // To the senders, operators and the log. `pause`: of the engine, for this version.
  void Report(WrittenVersion written, Duration pause, bool first_release);

 private:
  // Memory of no known version that is exactly the oldest offered one, as a checkpoint is that
  // trainer and engine both began with: as that version. A delta leads from it. It is not released.
  std::optional<LiveState> AsOldest(const SyncTarget& target) const;
  void OnPrepared(Prepared& prepared, TimePoint begun) const;
  CommitReport ReportOf(const Prepared& prepared) const;
  // From the announcement until the commit.
  VersionTimes TimesBefore(const Prepared& prepared) const;
  // When all ranks had announced it and it could be looked at.
  TimePoint Offered(const Prepared& prepared) const;

  const Parts parts_;
  CommitPipeline pipeline_;
  bool stages_all_ = false;  // there was no memory to write tensors as they arrive
};

}  // namespace dws
