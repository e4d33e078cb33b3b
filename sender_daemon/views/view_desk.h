// The views that receivers follow: begins one when the first receiver asks for it, keeps it up to date
// with every version, and lets it go when nobody has followed it for a while.
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

// Lifecycle: as long as the executor's tasks. Threads: Follow from any; the others on the executor,
// where the trainer's calls are.
class ViewDesk {
 public:
  struct Parts {
    Executor& executor;
    ReceiverHub& hub;
    PublishPipeline& pipeline;
    ThreadPool& pool;
    const Clock& clock;
    DeltaLogLimits log_limits;
    std::function<void(Duration)> on_captured;  // how long the views of a version took
  };
  explicit ViewDesk(const Parts& parts) : parts_(parts) {}

  using Refused = std::function<void(const Status&)>;
  // A receiver follows the view of this name, which ParseView accepts; a welcome is due to it once the
  // view is there. `refused` is called if it cannot be: INVALID_ARGUMENT: as
  // ViewSnapshot::Create; RESOURCE_EXHAUSTED: there are too many, or too little memory; UNAVAILABLE:
  // not now.
  void Follow(const std::string& name, const Refused& refused);

  // The trainer's state is another one: of a new registration, or cut finer.
  void OnState(RankStatePtr trainer);
  // Whether the views that are followed could be of this layout of the trainer's. Errors: as
  // ViewSnapshot::Create.
  Status CheckLayout(const RankLayout& trainer) const;
  // The stream was forgotten.
  void Forget();
  // The trainer has begun a version, which changes its snapshot until OnCaptured or OnGivenUp.
  void OnOpened() { open_ = true; }
  void OnGivenUp();
  // The same version of each view, to be sealed with it.
  std::vector<ViewJob> OnCaptured(const CapturedVersion& captured);

 private:
  struct Followed {
    std::unique_ptr<ViewSnapshot> view;  // null before the trainer has registered
    TimePoint used_at;                   // when it had a follower last, as far as was looked
    // The newest version in the layouts before this one, whose state tokens receivers may still report.
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
