// The steps of a version after its capture, in sequence on one thread:
//   1. seal: encoded blocks, and the frames that the capture made of them (capture/open_delta.h),
//      become a delta object with its manifest
//   2. record: the ledger writes the version durably
//   3. retain: the log takes the object; a receiver that fetches the open delta continues from
//      there
//   4. announce: receivers are told
// A full disk stops the thread at 2: it retries until it succeeds, readiness says why, and Publish
// makes the trainer wait. A version is announced only after it is recorded.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <thread>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/liveness.h"
#include "common/base/threads/mutex.h"
#include "sender_daemon/capture/capture.h"
#include "sender_daemon/publish/rank_state.h"

namespace dws {

// A view of the rank (views/view_snapshot.h) at the same version.
struct ViewJob {
  RankStatePtr state;
  CapturedVersion captured;
};

// A captured version that is to be sealed.
struct SealJob {
  RankStatePtr state;
  CapturedVersion captured;
  double capture_seconds = 0;
  TimePoint accepted_at;
  std::vector<ViewJob> views;  // retained with it, but not recorded: they follow from it
};

// Pure: seals the version of a job.
RetainedVersionPtr Seal(SealJob job);

// Returns the weights of `version` in another layout, whose slices have `digests`; no delta leads
// to it. Pure.
RetainedVersionPtr Restated(const RetainedVersion& version, const Digest& layout_signature,
                            std::vector<Digest> digests);

// Lifecycle: Stop (or the destructor) finishes the current job and drops the others, which were
// never announced. Threads: one producer; Stop from any.
class PublishPipeline {
 public:
  struct Outputs {
    std::function<Status(const RankState&, const RetainedVersion&)> record;
    std::function<void(const RankStatePtr&)> announce;
    std::function<void(const Status&)>
        on_trouble;  // recording failed (the status), or works again (OK)
    // Called before the announcement. May be empty.
    std::function<void(const RankState&, const RetainedVersion&)> on_published = nullptr;
  };
  explicit PublishPipeline(Outputs outputs);
  ~PublishPipeline();

  // Waits for room for one more job. RESOURCE_EXHAUSTED: too many versions wait because they cannot
  // be recorded; says why. UNAVAILABLE: stopping.
  Status Reserve(Duration timeout);
  // Call only after Reserve.
  void Submit(SealJob job);
  // Waits until no job is left. DEADLINE_EXCEEDED otherwise.
  Status Drain(Duration timeout);
  // Returns whether no job is left.
  bool idle() const;
  void Stop();

  // Working while a job is in progress; beats with every attempt to record.
  const Liveness& liveness() const { return liveness_; }

 private:
  void Run();
  bool Process(SealJob job);

  const Outputs outputs_;
  Liveness liveness_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<SealJob> jobs_ GUARDED_BY(mutex_);
  bool busy_ GUARDED_BY(mutex_) = false;
  bool stopping_ GUARDED_BY(mutex_) = false;
  Status trouble_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace dws
