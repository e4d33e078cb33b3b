// Keeps a local checkpoint at the newest version of a folder to which slime, or a dws-sender,
// writes version folders. If there is an engine to control, it makes the engine load that
// checkpoint.
//
//   1. apply    every next version in the folder, each as a whole (slime_delta/local/apply.h),
//               while the engine generates: it does not read the files then
//   2. load     pause the engine, make it load the checkpoint, resume it (engine_loader.h)
//
// While the engine may be reading the files, the load comes first: until it has succeeded, no
// version is applied and the receiver is not ready.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/base/threads/liveness.h"
#include "common/base/threads/loop_thread.h"
#include "common/base/threads/mutex.h"
#include "common/base/threads/thread_pool.h"
#include "common/base/wall_clock.h"
#include "common/formats/slime_delta/local/apply.h"
#include "common/service/history/recent_items.h"
#include "common/sync_state/sender_watch.h"
#include "common/transport/shared_fs/visibility_hook.h"
#include "receiver_daemon/follower/engine_loader.h"
#include "receiver_daemon/follower/version_applier.h"

namespace dws {

// A version that was applied to the local checkpoint.
struct AppliedVersion {
  uint64_t version = 0;
  UnixTime at;
  double apply_seconds = 0;
  double pause_seconds = 0;  // of the engine that loaded it; 0: none has
};

// The follower's state as operators see it.
struct FollowerView {
  std::string stage = "idle";       // opening, looking, applying, loading, verifying
  std::optional<uint64_t> version;  // of the local checkpoint; none: not open yet
  uint64_t newest = 0;              // in the folder when it was last listed; 0: none
  bool listed = false;              // the folder has been listed
  std::optional<uint64_t> loaded;   // by the engine; none: unknown
  bool has_engine = false;
  bool drained = false;
  uint64_t applied = 0;          // versions, since the start
  uint64_t applied_tensors = 0;  // changed tensors of these versions
  uint64_t loads = 0;
  double last_pause_seconds = 0;
  double last_apply_seconds = 0;
  // The proof of the version that was applied last; none: no version was applied.
  std::optional<slime::BaseProof> proof;
  bool unproved = false;  // the next version is refused: nothing proves its base
  std::string trouble;    // why the last look failed; empty: it succeeded
  std::string waits_for;  // the incomplete version and its missing part; empty: none
  // How long all looks have failed, hung or found an incomplete version; 0: the last one did not.
  double seconds_failing = 0;
  bool stale = false;                   // that is longer than StaleRule::after
  double seconds_since_version = 0;     // since the version last changed, or the start
  std::vector<AppliedVersion> history;  // the versions that were applied last, oldest first

  // The version that counts: the engine's, if there is one; nullopt: unknown.
  std::optional<uint64_t> known() const { return has_engine ? loaded : version; }
  uint64_t current() const { return known().value_or(0); }
  uint64_t lag() const { return newest > current() ? newest - current() : 0; }
  // False: the version that counts is unknown, or no newer one was seen and the folder cannot be
  // looked at.
  bool lag_known() const {
    return known().has_value() && (lag() > 0 || (listed && trouble.empty()));
  }
};

// Lifecycle: Start, then Stop, which must come before the destructor. All references must outlive
// it. Threads: it has its own thread; view, SetDrained, AwaitChange, RequestVerify and
// ShowReadiness are safe from any.
class SlimeFollower {
 public:
  struct Parts {
    FileSystem& files;
    ThreadPool& pool;
    const Clock& clock;
    EngineLoader::MakeControl make_control;  // null: no engine is controlled
    // Called at every change of readiness, one call at a time, on the follower's thread or the one
    // that calls ShowReadiness.
    std::function<void(bool ready, const std::string& reason)> on_readiness;
    Liveness* liveness = nullptr;  // null: a step that hangs is not noticed
  };
  struct Options {
    std::string folder;      // contains weight_vNNNNNN folders
    std::string checkpoint;  // the folder of the local checkpoint
    std::string engine;      // URL of the engine; empty: no engine
    Duration poll;
    Duration pause_timeout;
    shared::VisibilityHook before_read = {};  // runs before each look
    bool before_read_required = false;        // if it fails, so does the look
    bool verify_all = true;                   // read the whole checkpoint before each version
    slime::ProofRule proof = slime::ProofRule::kFolder;  // the proof that a delta needs
    StaleRule stale;                                     // how long without a successful look
  };

  SlimeFollower(Parts parts, Options options);
  ~SlimeFollower();

  void Start();
  void Stop();

  // One look at the folder, with all the work that results. Errors are also in view().trouble.
  // Public for tests, which call it instead of Start.
  Status Step();
  // Updates readiness. Call it about every second from another thread: the folder becomes stale
  // with time alone, and a step may hang with the folder's mount. A step that makes progress, or
  // that waits for the engine within its deadline, does not count as hanging, however long it
  // takes.
  void ShowReadiness();

  FollowerView view() const;
  // While drained, no version is applied, and a running engine loads none. The step in progress is
  // finished first.
  void SetDrained(bool drained);
  // Waits until the stage has changed, `timeout` at most.
  void AwaitChange(Duration timeout) const;
  // Compares every tensor with its digest, and the engine's checksum of its weights, if it has one,
  // with the one of the call before; on the follower's thread; `done` is called there, once.
  // UNAVAILABLE: the receiver is stopping.
  void RequestVerify(std::function<void(const Status&)> done);

 private:
  // Step, with a longer wait after each failure. Returns the wait.
  Duration Round();
  // Opens the checkpoint, or takes its lock again. Errors as of LocalCheckpoint::Open.
  Status Open();
  // The checkpoint was replaced since it was opened: closes it.
  void CloseCheckpoint();
  // Runs the command before a look. An error only where it is required.
  Status RunBeforeRead();
  // Runs the command, applies all versions in the folder, then loads the last one.
  Status Follow();
  // Applies the next version; false: there is none yet.
  Result<bool> ApplyNext();
  // Makes the engine load the local version, unless it holds it, or the receiver is stopping.
  Status Load();
  void ServeVerifies();
  // Returns whether versions may be applied. If so, sets the stage, so that a drain waits for it.
  bool BeginLooking();
  void SetStage(std::string stage);
  void BeginStep();
  void EndStep(const Status& status);
  void LookForProgress() REQUIRES(mutex_);
  // For how long the step has made no progress; zero: for less than limits::kStepStillMax.
  Duration Still() const REQUIRES(mutex_);
  Duration Failing() const REQUIRES(mutex_);
  std::string StaleReason() const REQUIRES(mutex_);  // empty: not stale

  const Parts parts_;
  const Options options_;

  // Used by its thread only.
  VersionApplier versions_;
  std::unique_ptr<slime::LocalCheckpoint> local_;
  std::unique_ptr<EngineLoader> engine_;                        // null: no engine is controlled
  std::optional<IncompleteVersion> incomplete_;                 // at this step
  bool unproved_ = false;                                       // at this step
  slime::BaseProof last_proof_ = slime::BaseProof::kNotNeeded;  // of the version applied last

  Mutex telling_mutex_;  // held during on_readiness, so calls are in order
  std::optional<std::pair<bool, std::string>> told_ GUARDED_BY(telling_mutex_);
  RecentItems<AppliedVersion> history_;
  mutable Mutex mutex_;
  mutable CondVar seen_;  // the stage has changed
  FollowerView view_ GUARDED_BY(mutex_);
  SenderWatch watch_ GUARDED_BY(mutex_);  // of the folder; a version that is incomplete counts too
  bool stepping_ GUARDED_BY(mutex_) = false;
  uint64_t beats_ GUARDED_BY(mutex_) = 0;     // of a step and the pool, as last seen
  TimePoint progress_at_ GUARDED_BY(mutex_);  // when a beat, a wait, or no step was last seen
  TimePoint version_since_ GUARDED_BY(mutex_);
  std::vector<std::function<void(const Status&)>> verifies_ GUARDED_BY(mutex_);
  std::string hook_trouble_;  // of the last look; used by the thread only, as is the next
  std::string logged_;        // the last failure
  Duration wait_;             // of the thread: before the next look
  LoopThread loop_;
};

}  // namespace dws
