// The thread of a publisher beside the pipeline: it works on what the pipeline offers, as long as
// there is more to do, and tries again what has failed. It holds up nobody.
//
// What is done with an offer is the publisher's (shared_publisher.h, slime/slime_publisher.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/model/limits.h"
#include "sender_daemon/publish/rank_state.h"

namespace dws {

// Lifecycle: Start, then Stop or the destructor; what `step` uses outlives it. Threads: safe from
// any.
class OfferLoop {
 public:
  struct Options {
    std::string failed_event;                            // in the log, when the trouble is another
    Duration retry_delay = limits::kOfferRetryDelayMin;  // doubles
    // With nothing to do there is a round every kOfferPoll; sooner while this says so, asked after
    // a round by the thread that made it: after `soon`, then each time a quarter later, so what is
    // awaited is seen with a delay of at most a quarter of what it took.
    std::function<bool()> impatient = nullptr;
    Duration soon = limits::kOfferPoll;
  };
  // One round of work on what was offered last: true when there is more to do at once. CANCELLED is
  // no failure. Called by one thread at a time.
  using Step = std::function<Result<bool>(const RankStatePtr& offered)>;

  OfferLoop(Options options, Step step);
  ~OfferLoop();

  void Start();
  // There may be a new version in that state. Never blocks.
  void Offer(RankStatePtr state);
  // All work on what was offered is done, or has been tried and failed.
  bool settled() const;
  void Stop();
  // For a step that takes long: whether it should go on.
  bool wanted() const { return !stopping_.load(); }

  // Why the last round came to nothing; OK: it did not.
  Status trouble() const;
  uint64_t failures() const;

  // One round, for tests that have no thread.
  Result<bool> StepOnce();

 private:
  void Run();
  Result<bool> Round(uint64_t& seen);  // sets `seen` to the offers that it is about
  void Fail(const Status& status, uint64_t offers);

  const Options options_;
  const Step step_;
  std::atomic<bool> stopping_{false};

  mutable Mutex mutex_;
  CondVar changed_;
  RankStatePtr offered_ GUARDED_BY(mutex_);
  uint64_t offers_ GUARDED_BY(mutex_) = 0;
  uint64_t served_ GUARDED_BY(mutex_) = 0;  // offers after which there was nothing to do
  uint64_t failed_ GUARDED_BY(mutex_) = 0;  // offers that a round has failed with
  Status trouble_ GUARDED_BY(mutex_);
  uint64_t failures_ GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace dws
