// The views that receivers follow: begins a view when the first receiver asks for it, keeps it up
// to date with every version, and drops it when nobody has followed it for a while. Views that are
// published to a shared directory are begun with the trainer's state, and kept.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/executor.h"
#include "common/base/threads/mutex.h"
#include "common/base/threads/thread_pool.h"
#include "sender_daemon/publish/publish_pipeline.h"
#include "sender_daemon/serve/receiver_hub.h"
#include "sender_daemon/views/view_snapshot.h"

namespace dws {

// Lifecycle: must live as long as the executor's tasks. Threads: Follow from any; the other methods
// on the executor, like the trainer's calls.
class FollowedViews {
 public:
  struct Parts {
    Executor& executor;
    ReceiverHub& hub;
    PublishPipeline& pipeline;
    ThreadPool& pool;
    const Clock& clock;
    DeltaLogLimits log_limits;
    std::vector<std::string> kept = {};         // names that ParseView accepts
    std::function<void(Duration)> on_captured;  // how long the views of a version took
  };
  explicit FollowedViews(const Parts& parts) : parts_(parts) {}

  using Refused = std::function<void(const Status&)>;
  // A receiver follows the view of this name, which ParseView accepts; it gets a welcome once the
  // view exists. `refused` is called if the view cannot exist. INVALID_ARGUMENT: as
  // ViewSnapshot::Create. RESOURCE_EXHAUSTED: there are too many views, or there is too little
  // memory. UNAVAILABLE: not now.
  void Follow(const std::string& name, const Refused& refused);

  // The trainer's state was replaced: by a new registration, or because it was cut finer.
  void OnState(RankStatePtr trainer);
  // Checks that the followed views could be made from this layout of the trainer's. Errors as
  // ViewSnapshot::Create.
  Status CheckLayout(const RankLayout& trainer) const;
  // The stream was forgotten.
  void Forget();
  // The trainer has begun a version, which changes its snapshot until OnCaptured or OnGivenUp.
  void OnOpened() { open_ = true; }
  void OnGivenUp();
  // Returns each view at the same version, to be sealed with it.
  std::vector<ViewJob> OnCaptured(const CapturedVersion& captured);

 private:
  struct Followed {
    std::unique_ptr<ViewSnapshot> view;  // null before the trainer has registered
    TimePoint used_at;                   // when it had a follower last, as far as was looked
    // The newest version in the layouts before this one. Receivers may still report its state
    // tokens.
    RetainedVersionPtr former = nullptr;
  };
  void BeginAsked();
  Status Begin(const std::string& name, const RetainedVersionPtr& former = nullptr);
  // Captures the trainer's newest version, if the view has none and no other is being captured.
  void Fill(const std::string& name, Followed& followed);
  void DropUnused();

  const Parts parts_;
  Mutex mutex_;
  std::map<std::string, std::vector<Refused>> asked_ GUARDED_BY(mutex_);  // since the last task
  // On the executor:
  bool open_ = false;
  RankStatePtr trainer_;
  std::map<std::string, Followed> followed_;  // by name
};

}  // namespace dws
