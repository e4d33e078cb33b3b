// The commit: the only place that writes to live weights. protocol.md §4 in order; the steps are
// numbered in the .cc.
#pragma once

#include <functional>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/ledger/version_ledger.h"
#include "receiver_daemon/engine_control.h"
#include "receiver_daemon/live_state.h"
#include "receiver_daemon/prepare.h"
#include "receiver_daemon/sender_group.h"

namespace dws {

// Lifecycle: as long as the worker. Threads: one at a time.
class CommitPipeline {
 public:
  CommitPipeline(SenderGroup& senders, ReceiverLedger& ledger, ThreadPool& pool, const Clock& clock,
                 Duration pause_timeout)
      : senders_(senders),
        ledger_(ledger),
        pool_(pool),
        clock_(clock),
        pause_timeout_(pause_timeout) {}

  struct Engine {
    EngineControl& control;
    const EngineWeights& weights;
    // Whether `weights` is still what is attached: asked when the engine has paused, before the
    // first write.
    std::function<bool()> is_current;
  };

  // Brings the engine to `prepared` and lets it run. OK: `live` is at the target; returns for how
  // long the engine was paused by this (zero when it was paused before); Acknowledge is next. After
  // an error either nothing was written, the engine runs on with what it had, and `live` is
  // unchanged; or `live` is forgotten, the engine stays paused and its memory has to be read and
  // repaired before it runs again.
  Result<Duration> Commit(const Engine& engine, LiveState& live, const Prepared& prepared);

  // Tells the senders what Commit came to. Apart from it, so that the caller can publish `live`
  // before: a connection made in between then says so itself.
  void Acknowledge(const Prepared& prepared, Duration pause, Duration stage_time);

 private:
  Status Intend(const EngineWeights& weights, const LiveState& live, const SyncTarget& target);
  void Abandon(const Engine& engine, const LiveState& live, const SyncTarget& target);
  Status Write(const EngineWeights& weights, const Prepared& prepared);
  Status CheckWritten(const EngineWeights& weights, const Prepared& prepared);
  void Record(const SyncTarget& target);

  SenderGroup& senders_;
  ReceiverLedger& ledger_;
  ThreadPool& pool_;
  const Clock& clock_;
  const Duration pause_timeout_;
};

}  // namespace dws
