// The commit: the only place that writes to live weights that are a version.
// protocol.md §4 in order; the steps are numbered in the .cc.
#pragma once

#include <functional>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/ledger/version_ledger.h"
#include "common/sync_state/commit_state.h"
#include "common/sync_state/live_state.h"
#include "receiver_daemon/commit/prepare.h"
#include "receiver_daemon/commit/version_times.h"
#include "receiver_daemon/engine/engine_control.h"
#include "receiver_daemon/transfer/senders.h"

namespace dws {

// Returns the version with which an engine is released whose memory is proved to be `live`.
EngineVersion VersionOf(const LiveState& live);

// Lifecycle: lives as long as the worker. Threads: one at a time.
class CommitPipeline {
 public:
  CommitPipeline(Senders& senders, ReceiverLedger& ledger, ThreadPool& pool, const Clock& clock,
                 Duration pause_timeout)
      : senders_(senders),
        ledger_(ledger),
        pool_(pool),
        clock_(clock),
        pause_timeout_(pause_timeout) {}

  struct Engine {
    EngineControl& control;
    const EngineWeights& weights;
    // Returns whether `weights` is still the attached memory. Called when the engine has paused,
    // before the first write.
    std::function<bool()> is_current;
  };

  // Says who resumes the engine.
  enum class Release : uint8_t {
    kAtOnce,    // the commit, as soon as memory is whole
    kByLeader,  // the leader of its commit group, later: the engine stays paused in any case
  };

  struct Done {
    // How long the commit kept a generating engine from generating: from the end of the last rank's
    // last forward pass, which its answer to the pause tells, until the release. Zero: the engine
    // was paused before.
    Duration pause = {};
    VersionTimes times;  // from kIntent to kRecord, and kUpload of the write
  };

  // Brings the engine to `prepared` and lets it run. OK: `live` is at the target; Acknowledge is
  // next. After an error there are two cases. Either nothing was written and `live` is unchanged:
  // an engine that is proved to have a version runs on with it, another engine stays as the pause
  // has left it. Or `live` is forgotten, the engine stays paused, and its memory has to be read and
  // repaired before it runs again; this is also so if the engine could not be resumed.
  Result<Done> Commit(const Engine& engine, LiveState& live, const Prepared& prepared,
                      Release release = Release::kAtOnce);

  // Reports the outcome of Commit to the senders. Apart from it, so that the caller can publish
  // `live` before: a connection made in between then reports that itself.
  void Acknowledge(const Prepared& prepared, Duration pause, Duration stage_time);

 private:
  Status Intend(const EngineWeights& weights, const LiveState& live, const SyncTarget& target);
  struct Attempt {
    const Engine& engine;
    LiveState& live;
    const SyncTarget& target;
    Release release;
    CommitState state;
  };
  // Does what is necessary after an error, and returns `cause`.
  Status Fail(Attempt& attempt, const Status& cause);
  Status Abandon(const Attempt& attempt);
  Status Write(const EngineWeights& weights, const Prepared& prepared, const ScatterList& scatter);
  Status CheckWritten(const EngineWeights& weights, const Prepared& prepared);
  void Record(const SyncTarget& target);

  Senders& senders_;
  ReceiverLedger& ledger_;
  ThreadPool& pool_;
  const Clock& clock_;
  const Duration pause_timeout_;
};

}  // namespace dws
