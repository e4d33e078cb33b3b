// The boundaries between an engine's batches. Calls of engines and operators open and end them; if
// --commit-policy holds a version back, the worker asks whether a boundary is open. This class
// decides nothing else and touches no memory.
//
// A commit and the end of a boundary exclude each other: a boundary that is over when Hold asks
// does not count, and one that counted is not over before Settle.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/service/peers/change_signal.h"

namespace dws {

// Lifecycle: that of the worker; `changed` must outlive it. Threads: safe from any; Hold and Settle
// from the worker's.
class CommitBoundary {
 public:
  // Called once, with no lock held. OK: the boundary is over, and no commit that began in it is
  // under way.
  using Ended = std::function<void(const Status&)>;
  // Callers choose lower ids than this.
  static constexpr uint64_t kOwnIds = uint64_t{1} << 63;

  explicit CommitBoundary(ChangeSignal& changed) : changed_(changed) {}

  // The caller's side.
  //
  // Opens a boundary. If `stays`, it lasts until End; otherwise until no version is held, which may
  // be at once. ALREADY_EXISTS: the id is in use. RESOURCE_EXHAUSTED: kBoundariesOpenMax are open.
  // UNAVAILABLE: after Close. `ended` is called unless an error is returned. `owner`: identifies
  // the caller that may drop it, by an address that nothing else has meanwhile; not needed for an
  // id of NewId.
  Status Begin(uint64_t id, bool stays, Ended ended, const void* owner = nullptr);
  // Ends it. `ended` is called when it is over, even if there is no such boundary. If
  // kBoundariesOpenMax calls already wait for a commit, it is called at once with
  // RESOURCE_EXHAUSTED.
  void End(uint64_t id, Ended ended);
  // The caller that owns it has gone. Returns whether its `ended` will not be called.
  bool Drop(uint64_t id, const void* owner = nullptr);
  uint64_t NewId();  // of a boundary that no caller named; kOwnIds or higher

  // The worker's side.
  //
  // A version is staged and held back, from now until Settle. True: a boundary is open, so it has
  // to be committed, or given up, and Settle called.
  bool Hold();
  // No version is held any longer.
  void Settle();
  // Ends all, and all that come later.
  void Close(const Status& reason);

 private:
  struct Entry {
    bool stays = false;
    bool over = false;  // by End, during a commit
    Ended ended;
    const void* owner = nullptr;
  };
  static void Finish(const std::vector<Ended>& calls, const Status& status);

  ChangeSignal& changed_;
  Mutex mutex_;
  std::optional<Status> closed_ GUARDED_BY(mutex_);
  std::map<uint64_t, Entry> open_ GUARDED_BY(mutex_);
  std::vector<Ended> waiting_ GUARDED_BY(mutex_);  // of End during a commit
  uint64_t last_own_id_ GUARDED_BY(mutex_) = kOwnIds;
  bool held_ GUARDED_BY(mutex_) = false;
  bool committing_ GUARDED_BY(mutex_) = false;  // since Hold returned true
};

}  // namespace dws
