// The worker's state as others see it: its parts write here what they do, and services, metrics and
// the stream threads read it. Decides nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/threads/mutex.h"
#include "common/sync_state/live_state.h"
#include "common/sync_state/sender_watch.h"
#include "receiver_daemon/commit/prepare.h"
#include "receiver_daemon/commit/scrub.h"
#include "receiver_daemon/transfer/subscription.h"
#include "receiver_daemon/worker/operator_requests.h"
#include "receiver_daemon/worker/worker_status.h"

namespace dws {

// Lifecycle: lives as long as the worker. Threads: any may call status, ShowReadiness and drained;
// only the worker's may call the rest.
class WorkerBoard {
 public:
  struct Parts {
    Subscription& subscription;
    OperatorRequests& requests;
    const Preparer& preparer;
    const Clock& clock;
    // Called with every change of readiness, one at a time, on the worker's thread or that of
    // ShowReadiness; may be empty.
    std::function<void(bool ready, const std::string& reason)> on_readiness;
    std::function<void(const CommitReport&)> on_commit;  // on the worker's thread; may be empty
    std::function<void(Duration)> on_acknowledged;       // the same; see ShowAcknowledged
  };
  struct Options {
    uint64_t staging_bytes_max = 0;
    StaleRule stale;
    ScrubOptions scrub;
    CommitPolicy commit_policy;
  };
  WorkerBoard(Parts parts, const Options& options);

  WorkerStatus status() const;
  // Staleness comes with time alone, and the worker may be in a call that hangs: call this every
  // second or so.
  void ShowReadiness();

  // `staging_bytes`: what lies in memory for the target; while it is fetched that is measured.
  void SetStage(std::string stage, std::optional<WeightVersion> target, uint64_t staging_bytes = 0);
  // Live memory is being read again. Shown as the stage "verifying" while nothing is fetched or
  // committed, until EndReading.
  void ShowReading(uint64_t done_bytes, uint64_t total_bytes);
  void EndReading();
  // Says whether the commit policy holds a staged version back; calling it again with the same
  // value changes nothing.
  void SetHeld(bool held);
  void SetReplaced(uint64_t replaced);
  void CountReplaced();
  // A full version that was read while it was captured.
  void CountEarly(bool staged);
  void SetTrouble(std::string trouble);
  // The target was tried and not reached. Once a failure comes StaleRule::after or more after the
  // first, the version of the engine counts as stale; any other trouble, or none, ends that. Time
  // that the next attempt takes does not count before it has failed too.
  void SetFailure(std::string trouble);
  // The readiness that is shown unless ShowReadiness has a reason of its own: drained, stale, a
  // stream that is not recorded.
  void SetReadiness(bool ready, std::string reason);
  void SetUnrecorded(std::string reason);
  void SetDrain(bool drained);
  bool drained() const { return drained_; }
  void SetPaused(bool paused);
  // `runs`: the engine may generate with it, so senders may count it as committed.
  void ShowLive(const LiveState& live, bool runs);
  void ShowCommit(CommitReport report, uint64_t attach_mismatches);
  // How long it took to acknowledge the commit that was shown last.
  void ShowAcknowledged(Duration took);
  void CountWriteMismatch();
  void CountDrift(uint64_t MismatchCounts::*source, uint64_t slices = 1);
  void CountScrub(const Scrub& scrub, uint64_t bytes, bool pass_done);

 private:
  const Parts parts_;
  const Options options_;
  std::atomic<bool> drained_{false};
  // Why an engine that runs has reached no target for StaleRule::after; empty: it has, or has tried
  // none.
  std::string Failing() const REQUIRES(mutex_);

  mutable Mutex mutex_;
  WorkerStatus status_ GUARDED_BY(mutex_);
  std::optional<TimePoint> failing_since_ GUARDED_BY(mutex_);
  TimePoint failed_at_ GUARDED_BY(mutex_);     // the last time, if failing_since_ is set
  bool own_ready_ GUARDED_BY(mutex_) = false;  // by SetReadiness
  std::string own_reason_ GUARDED_BY(mutex_);
  struct Reading {
    uint64_t done_bytes = 0;
    uint64_t total_bytes = 0;
  };
  std::optional<Reading> reading_ GUARDED_BY(mutex_);
  std::string unrecorded_ GUARDED_BY(mutex_);  // why a new stream is not recorded; empty: it is
  Mutex telling_mutex_;  // held during on_readiness, so that calls keep the order of the changes
};

}  // namespace dws
