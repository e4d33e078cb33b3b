// Keeps a local checkpoint at the newest version of a folder that slime, or a dws-sender, writes
// version folders to; and the engine that loads that checkpoint, if there is one to control.
//
//   1. apply    every version that the folder has next, each as a whole (slime_delta/apply.h),
//               while the engine generates: it does not read the files then
//   2. load     pause the engine, have it load the checkpoint, let it run again (engine_loader.h)
//
// While the engine may be reading the files it comes first: nothing is applied, and nothing is said
// to be ready, before it has loaded what is there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/mutex.h"
#include "common/base/pulse.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/formats/slime_delta/apply.h"
#include "common/sync_state/sender_watch.h"
#include "receiver_daemon/follower/engine_loader.h"
#include "receiver_daemon/follower/version_applier.h"

namespace dws {

// What operators see of it.
struct FollowerView {
  std::string stage = "idle";       // opening, looking, applying, loading, verifying
  std::optional<uint64_t> version;  // of the local checkpoint; none: not open yet
  uint64_t newest = 0;              // in the folder; 0: none
  std::optional<uint64_t> loaded;   // by the engine; none: not known
  bool has_engine = false;
  bool drained = false;
  uint64_t applied = 0;          // versions, since the start
  uint64_t applied_tensors = 0;  // changed ones of those
  uint64_t loads = 0;
  double last_pause_seconds = 0;
  double last_apply_seconds = 0;
  std::string trouble;               // why the last look failed; empty: it did not
  double seconds_failing = 0;        // that all looks failed, or do not return; 0: the last did not
  double seconds_since_version = 0;  // since another version was there, or the start
};

// Lifecycle: Start, then Stop; the destructor needs Stop. All references outlive it. Threads: its
// own; view, SetDrained, RequestVerify and ShowReadiness from any.
class SlimeFollower {
 public:
  struct Parts {
    FileSystem& files;
    ThreadPool& pool;
    const Clock& clock;
    EngineLoader::MakeControl make_control;  // none: nobody loads the checkpoint
    // Told of every change of readiness, one at a time, on the follower's thread or
    // ShowReadiness's.
    std::function<void(bool ready, const std::string& reason)> on_readiness;
    Pulse* pulse = nullptr;  // null: a step that hangs is not noticed
  };
  struct Options {
    std::string folder;      // with weight_vNNNNNN in it
    std::string checkpoint;  // the local one
    Duration poll;
    Duration pause_timeout;
    bool verify_all = true;  // read the whole checkpoint before each version
    StaleRule stale;         // without a look that succeeds
  };

  SlimeFollower(Parts parts, Options options);
  ~SlimeFollower();

  void Start();
  void Stop();

  // One look at the folder, and all that follows from it. Errors are also in view().trouble. Public
  // for tests, which call it instead of Start.
  Status Step();
  // Staleness comes with time alone, and a step may hang with the folder's mount: to be called
  // every second or so by somebody else. A step that makes progress, or waits for the engine within
  // its deadline, does not hang, however long it takes.
  void ShowReadiness();

  FollowerView view() const;
  // While drained no version is taken. What is under way ends first.
  void SetDrained(bool drained);
  // Until the view has changed, or so long.
  void AwaitChange(Duration timeout) const;
  // Compares every tensor with its digest, on the follower's thread; `done` is called there.
  void RequestVerify(std::function<void(const Status&)> done);

 private:
  void Run();
  Status Open();
  // Applies all there is, and has it loaded.
  Status Follow();
  // Applies what comes next; false: nothing does.
  Result<bool> ApplyNext();
  // What is local, unless the engine has it, or this is stopping.
  Status Load();
  void ServeVerifies();
  // Whether versions may be taken. What was begun then is seen in the stage.
  bool BeginLooking();
  void SetStage(std::string stage);
  void BeginStep();
  void EndStep(const Status& status);
  void LookForProgress() REQUIRES(mutex_);
  // For how long the step has made no progress; zero: not for longer than kStepStillMax.
  Duration Still() const REQUIRES(mutex_);
  Duration Failing() const REQUIRES(mutex_);
  std::string StaleReason() const REQUIRES(mutex_);  // empty: it is not

  const Parts parts_;
  const Options options_;

  // Of its thread.
  VersionApplier versions_;
  std::unique_ptr<slime::LocalCheckpoint> local_;
  std::unique_ptr<EngineLoader> engine_;  // null: none

  Mutex telling_mutex_;  // held while on_readiness is told: in the order of what was seen
  std::optional<std::pair<bool, std::string>> told_ GUARDED_BY(telling_mutex_);
  mutable Mutex mutex_;
  CondVar changed_;       // to be done
  mutable CondVar seen_;  // the view
  bool stopping_ GUARDED_BY(mutex_) = false;
  FollowerView view_ GUARDED_BY(mutex_);
  SenderWatch watch_ GUARDED_BY(mutex_);  // of the folder
  bool stepping_ GUARDED_BY(mutex_) = false;
  uint64_t beats_ GUARDED_BY(mutex_) = 0;     // of the pulse and the pool
  TimePoint progress_at_ GUARDED_BY(mutex_);  // seen last: a beat, a wait, or no step at all
  TimePoint version_since_ GUARDED_BY(mutex_);
  std::vector<std::function<void(const Status&)>> verifies_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace dws
