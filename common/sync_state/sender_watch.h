// How long a receiver has been without its senders, as a pure class. No I/O, no clock, no threads:
// receiver_daemon/transfer/subscription.h reports to it whether all senders are accepted.
#pragma once

#include <optional>

#include "common/base/clock.h"
#include "common/sync_state/presence_limits.h"

namespace dws {

// When an engine without senders counts as stale.
struct StaleRule {
  Duration after = limits::kStaleAfterDefault;  // stale after so long without them
  bool keeps_ready = false;                     // a stale engine stays ready
};

// Threads: one at a time.
class SenderWatch {
 public:
  // Without senders from `now` on.
  explicit SenderWatch(TimePoint now) : since_(now) {}

  // `accepted`: every trainer rank has a sender whose welcome was accepted and whose connection
  // lives. Otherwise no version can be served, which counts as having no sender.
  void Observe(bool accepted, TimePoint now) {
    if (accepted) {
      since_.reset();
    } else if (!since_.has_value()) {
      since_ = now;
    }
  }

  // For how long; zero: the senders are accepted.
  Duration Without(TimePoint now) const {
    return since_.has_value() ? now - *since_ : Duration::zero();
  }

 private:
  std::optional<TimePoint> since_;  // none: accepted
};

}  // namespace dws
