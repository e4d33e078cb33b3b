// Decides whether a sender is ready, and why not, from the reports of its parts.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "sender_daemon/publish/version_sink.h"
#include "sender_daemon/trainer/drain_switch.h"

namespace dws {

// Not ready while no trainer is registered, versions cannot be recorded, an operator has drained
// it, or nothing could be published to one of its places, or in a view, for some time. Lifecycle:
// all references must outlive it. Threads: safe from any.
class SenderReadiness {
 public:
  struct Parts {
    std::string awaited;  // "trainer rank 0 of job 'a' to register on /run/dws/sender-0.sock"
    Duration place_stale_after{};  // how long one may fail; zero: for ever
    const DrainSwitch& drain;
    const VersionSinks& places;
    std::function<std::optional<PlaceFailure>()> views;  // FollowedViews::failure
    // Called at every change, one call at a time.
    std::function<void(bool ready, const std::string& reason)> show;
  };
  explicit SenderReadiness(Parts parts) : parts_(std::move(parts)) {}

  void SetRegistered(bool registered);
  // `trouble` says why versions cannot be recorded; OK: they can.
  void SetTrouble(const Status& trouble);
  // Also after the operator's drain has changed, and about every second: places fail with time.
  void Update();
  // The failure that has lasted longest: of a place, in words with the flag that names the place,
  // or of views; nullopt: nothing fails.
  std::optional<PlaceFailure> Failure() const;

 private:
  std::string Reason() const;  // empty: ready

  const Parts parts_;
  Mutex telling_mutex_;  // held during `show`, so its calls are in order
  std::optional<std::string> told_ GUARDED_BY(telling_mutex_);
  mutable Mutex mutex_;
  bool registered_ GUARDED_BY(mutex_) = false;
  Status trouble_ GUARDED_BY(mutex_);
};

}  // namespace dws
