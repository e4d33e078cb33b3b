// The views that a place is to have, and that the sender could not make of the trainer's tensors.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/threads/mutex.h"
#include "sender_daemon/publish/offer_loop.h"

namespace dws {

// Threads: safe from any.
class LackingViews {
 public:
  // The trainer's newest state has come, with this view or without it.
  void Note(const std::string& view, bool lacks) {
    MutexLock lock(mutex_);
    if (lacks) since_.try_emplace(view, RealClock().Now());
    if (!lacks) since_.erase(view);
  }
  // Names one of them; nullopt: there is none.
  std::optional<PlaceFailure> failure() const {
    MutexLock lock(mutex_);
    if (since_.empty()) return std::nullopt;
    const auto& [view, since] = *since_.begin();
    return PlaceFailure{
        .reason = fmt::format("view '{}' could not be made of the trainer's tensors: the log has "
                              "the reason (view_ended)",
                              view),
        .lasts = RealClock().Now() - since};
  }

 private:
  mutable Mutex mutex_;
  std::map<std::string, TimePoint> since_ GUARDED_BY(mutex_);
};

}  // namespace dws
