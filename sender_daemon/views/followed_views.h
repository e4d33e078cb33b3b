// The views that receivers follow: begins a view when the first receiver asks for it, keeps it up
// to date with every version, and drops it when nobody has followed it for a while. Views that are
// published to a shared directory or a folder of slime's are begun with the trainer's state, and
// kept.
//
// If a recipe has one scale a matrix and the matrices lie over several trainer ranks, the senders
// exchange their amax (rank_amax.h), once a version and as soon as it is recorded: its number then
// names these weights for good. A view gets the version when all ranks' amax of it are there, after
// the trainer's own state, or never: the trainer's next version changes the weights. So the next
// one waits for the exchange, for a moment, and what comes too late is left out.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/executor.h"
#include "common/base/threads/mutex.h"
#include "common/base/threads/thread_pool.h"
#include "sender_daemon/on_demand/objects/object_exchange.h"
#include "sender_daemon/publish/offer_loop.h"
#include "sender_daemon/publish/publish_pipeline.h"
#include "sender_daemon/serve/receiver_hub.h"
#include "sender_daemon/views/awaited_amax.h"
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
    // A view has the trainer's newest version, which was announced without it.
    std::function<void(const RankStatePtr&)> on_late;
    std::function<void()> on_left_out;  // a view has left out a version
  };
  explicit FollowedViews(const Parts& parts) : parts_(parts), awaited_(parts.clock) {}

  // Before the first call of another method. Null: this sender knows none of the other ranks.
  void SetExchange(ObjectExchange* exchange) { exchange_ = exchange; }

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
  // The trainer begins a version, which changes its snapshot until OnCaptured or OnGivenUp.
  void OnOpening();
  void OnGivenUp();
  // Returns each view at the same version, to be sealed with it; without those that have it later.
  std::vector<ViewJob> OnCaptured(const CapturedVersion& captured);
  // The newest version is recorded. Threads: any.
  void OnRecorded(WeightVersion version);
  // Which view that somebody follows has been without the trainer's newest version for longest,
  // because other ranks' amax have not come; nullopt: none for long. Threads: any.
  std::optional<PlaceFailure> failure() const;

 private:
  // A version that a view gets when the other ranks' amax have come.
  struct Pending {
    WeightVersion version;
    std::shared_ptr<const CapturedVersion> steps = nullptr;  // from the version before; or null
  };
  struct Followed {
    std::shared_ptr<ViewSnapshot> view;  // null before the trainer has registered
    TimePoint used_at;                   // when it had a follower last, as far as was looked
    // The newest version in the layouts before this one. Receivers may still report its state
    // tokens.
    RetainedVersionPtr former = nullptr;
    std::optional<Pending> pending = std::nullopt;
    bool in_time = true;  // the last exchange was: the next one is waited for
  };
  void BeginAsked();
  Status Begin(const std::string& name, const RetainedVersionPtr& former = nullptr);
  std::shared_ptr<DeviceTiles> Device();
  // Captures the trainer's newest version, if the view has none and no other is being captured.
  void Fill(const std::string& name, Followed& followed);
  void DropUnused();
  void ForgetExchanges();
  // Checks that matrices which lie over several ranks can be followed.
  Status CheckDivided(const quantise::ViewLayout& view, const RankLayout& trainer,
                      uint32_t world_size) const;
  bool Exchanges(const ViewSnapshot& view) const;
  // The view's amax of the trainer's version, which was measured.
  UntoldAmax MessageOf(const Followed& followed, WeightVersion version) const;
  void Tell(UntoldAmax untold);
  // The view's version awaits the other ranks' amax.
  void Await(const std::string& name, Followed& followed, Pending pending);
  // Why it has not come.
  std::string Lacks(const std::string& name) const;
  // Gives the view its version if the other ranks' amax have come.
  void Complete(const std::string& name, Followed& followed);
  // Seals the captured version and retains it.
  void Retain(Followed& followed, CapturedVersion captured, TimePoint began);

  const Parts parts_;
  ObjectExchange* exchange_ = nullptr;
  mutable Mutex mutex_;
  std::map<std::string, std::vector<Refused>> asked_ GUARDED_BY(mutex_);  // since the last task
  AwaitedAmax awaited_;
  // On the executor:
  bool open_ = false;
  RankStatePtr trainer_;
  std::weak_ptr<DeviceTiles> device_;         // of trainer_; the views have it
  std::map<std::string, Followed> followed_;  // by name
  std::map<std::string, Status> refused_;     // by name: why, as logged last; they ask again
};

}  // namespace dws
