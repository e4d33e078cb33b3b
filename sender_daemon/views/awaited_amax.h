// What a sender's views await of the other ranks, and have to tell them: the state of the exchange
// that followed_views.h describes.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "sender_daemon/views/rank_amax.h"
#include "sender_daemon/views/view_snapshot.h"

namespace dws {

// What a view tells the other ranks once the version is recorded.
struct UntoldAmax {
  std::shared_ptr<ViewSnapshot> view;
  WeightVersion version;
  std::vector<std::byte> message;
};

// Views are known by their names, of which each has one ViewSnapshot at a time. That is of one
// stream and layout, so a version names one state of weights. Threads: safe from any.
class AwaitedAmax {
 public:
  using View = std::shared_ptr<const ViewSnapshot>;

  explicit AwaitedAmax(const Clock& clock) : clock_(clock) {}

  // The view waits for the other ranks' amax of its newest version. It is behind from the first
  // such call until Take has them.
  void Begin(const std::string& name);
  // The other ranks could not be told ours, because of `why`.
  void NoteUntold(const std::string& name, const Status& why);
  Status WhyUntold(const std::string& name) const;
  // The one of these views that is behind for longest, and for how long; nullopt: none is for more
  // than `least`.
  std::optional<std::pair<std::string, Duration>> LongestBehind(
      Duration least, const std::set<std::string>& missed) const;

  // The other ranks' amax have come. Returns false, and forgets them, if a newer version's have.
  bool Arrive(const std::string& name, const View& view, WeightVersion version,
              MatrixAmax::Others others);
  // Returns when they have come, or at that time.
  void WaitUntil(TimePoint until, const std::string& name, const View& view, WeightVersion version);
  // Those of this version, if they have come; then the view is not behind any longer.
  std::optional<MatrixAmax::Others> Take(const std::string& name, const View& view,
                                         WeightVersion version);

  // What is to be told once a version is recorded.
  void Keep(std::vector<UntoldAmax> untold);
  // Returns what is to be told of it. Forgets what was to be told of versions before.
  std::vector<UntoldAmax> Recorded(WeightVersion version);

  void Drop(const std::string& name, const View& view);
  void Clear();

 private:
  struct Arrived {
    std::weak_ptr<const ViewSnapshot> view;
    WeightVersion version;
    MatrixAmax::Others others;
  };
  struct Behind {
    TimePoint since;
    Status untold;
  };

  bool HasCome(const std::string& name, const View& view, WeightVersion version) const
      REQUIRES(mutex_);

  const Clock& clock_;
  mutable Mutex mutex_;
  CondVar arrival_;
  std::vector<UntoldAmax> untold_ GUARDED_BY(mutex_);
  std::map<std::string, Arrived> arrived_ GUARDED_BY(mutex_);
  // Views that await amax of a version, or have left versions out.
  std::map<std::string, Behind> behind_ GUARDED_BY(mutex_);
};

}  // namespace dws
