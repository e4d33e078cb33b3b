// The thread of a publisher that works beside the pipeline. It handles the versions that the
// pipeline offers, as long as there is more to do, and retries after failures. Never blocks the
// pipeline.
//
// The publisher's step does the work (shared_publisher.h, slime/slime_publisher.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/model/limits.h"
#include "common/sync_state/presence_limits.h"
#include "sender_daemon/publish/rank_state.h"

namespace dws {

// A failure because of which nothing can be published to a place.
struct PlaceFailure {
  std::string reason;
  Duration lasts{};

  // Names the view that this place lacks because of it; empty: the trainer's own tensors.
  PlaceFailure Of(const std::string& view) && {
    if (!view.empty()) reason = fmt::format("view '{}': {}", view, reason);
    return std::move(*this);
  }
};

// Lifecycle: Start, then Stop or the destructor. Everything that `step` uses must outlive it.
// Threads: safe from any.
class OfferLoop {
 public:
  struct Options {
    std::string failed_event;                            // logged when the error changes
    Duration retry_delay = limits::kOfferRetryDelayMin;  // doubles
    // With nothing to do there is a round every kOfferPoll. While this returns true rounds come
    // sooner: the first wait is `soon`, each later one is a quarter longer than the one before. So
    // an awaited event is noticed with a delay of about a quarter of the time that it took. Called
    // after a round, on the thread that ran it.
    std::function<bool()> impatient = nullptr;
    Duration soon = limits::kOfferPoll;
    // A round that has not asked wanted() for so long hangs.
    Duration still_max = limits::kStepStillMax;
  };
  // One round of work on the last offer. Returns true if there is more to do at once. CANCELLED is
  // not a failure. Called by one thread at a time.
  using Step = std::function<Result<bool>(const RankStatePtr& offered)>;

  OfferLoop(Options options, Step step);
  ~OfferLoop();

  void Start();
  // `state` may have a new version. Never blocks.
  void Offer(RankStatePtr state);
  // All work on what was offered is done, or was tried and failed.
  bool settled() const;
  void Stop();
  // For a long step, which asks again and again: whether it should go on.
  bool wanted() const {
    asked_at_.store(std::chrono::steady_clock::now());
    return !stopping_.load();
  }

  // Why the last round failed; OK if it did not.
  Status trouble() const;
  uint64_t failures() const;
  // nullopt: the last round did not fail, and this one does not hang.
  std::optional<PlaceFailure> failure() const;

  // Runs one round, for tests without the thread.
  Result<bool> StepOnce();

 private:
  void Run();
  Result<bool> Round(uint64_t& seen);  // sets `seen` to the offers it covers
  void Fail(const Status& status, uint64_t offers);

  const Options options_;
  const Step step_;
  std::atomic<bool> stopping_{false};
  mutable std::atomic<TimePoint> asked_at_{TimePoint()};  // wanted(), or a round has begun

  mutable Mutex mutex_;
  CondVar changed_;
  RankStatePtr offered_ GUARDED_BY(mutex_);
  uint64_t offers_ GUARDED_BY(mutex_) = 0;
  uint64_t served_ GUARDED_BY(mutex_) = 0;   // offers after which nothing was left to do
  uint64_t failed_ GUARDED_BY(mutex_) = 0;   // offers at the last failed round
  bool working_ GUARDED_BY(mutex_) = false;  // in a round
  Status trouble_ GUARDED_BY(mutex_);
  TimePoint trouble_since_ GUARDED_BY(mutex_);
  uint64_t failures_ GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace dws
