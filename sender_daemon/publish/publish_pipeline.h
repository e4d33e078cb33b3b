// What happens to a version behind the trainer's back, in one straight line on one thread:
//   1. seal: encoded blocks become a delta object with its manifest
//   2. record: the ledger has the version durably
//   3. retain: the log takes the object
//   4. announce: receivers hear of it
// A full disk stops the line at 2: it tries again until it succeeds, readiness says why, and
// Publish holds the trainer back. Nothing is announced that is not recorded.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <thread>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/pulse.h"
#include "common/base/status.h"
#include "sender_daemon/capture/capture.h"
#include "sender_daemon/publish/rank_state.h"

namespace dws {

// A captured version on its way.
struct SealJob {
  RankStatePtr state;
  CapturedVersion captured;
  double capture_seconds = 0;
  TimePoint accepted_at;
};

// Pure: the sealed version of a job.
RetainedVersionPtr Seal(SealJob job);

// Lifecycle: Stop (or the destructor) finishes the job under way and drops the others, which were
// never announced. Threads: one producer; Stop from any.
class PublishPipeline {
 public:
  struct Outputs {
    std::function<Status(const RankState&, const RetainedVersion&)> record;
    std::function<void(const RankStatePtr&)> announce;
    std::function<void(const Status&)>
        on_trouble;  // recording fails (the status), or works again (OK)
    // Before it is announced, with the time that sealing took. May be empty.
    std::function<void(const RankState&, const RetainedVersion&, Duration seal_time)> on_published =
        nullptr;
  };
  explicit PublishPipeline(Outputs outputs);
  ~PublishPipeline();

  // Waits for room for one more job. RESOURCE_EXHAUSTED: versions pile up because they cannot be
  // recorded; says why. UNAVAILABLE: stopping.
  Status Reserve(Duration timeout);
  // The room was reserved.
  void Submit(SealJob job);
  // Waits until nothing is on its way. DEADLINE_EXCEEDED otherwise.
  Status Drain(Duration timeout);
  // Nothing is on its way.
  bool idle() const;
  void Stop();

  // Works while a version is on its way, beats with every try to record it.
  const Pulse& pulse() const { return pulse_; }

 private:
  void Run();
  bool Process(SealJob job);

  const Outputs outputs_;
  Pulse pulse_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<SealJob> jobs_ GUARDED_BY(mutex_);
  bool busy_ GUARDED_BY(mutex_) = false;
  bool stopping_ GUARDED_BY(mutex_) = false;
  Status trouble_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace dws
