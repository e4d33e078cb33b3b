// What the worker has under way for its commit group, between two of its orders: values only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "receiver_daemon/commit/prepare.h"
#include "receiver_daemon/group/commit_group.h"
#include "receiver_daemon/worker/worker_status.h"

namespace dws {

struct GroupWork {
  struct ToStage {
    StageOrder order;
    TimePoint deadline;  // for hearing of the version
  };
  struct Staged {
    GroupNonce round;
    Prepared prepared;
    TimePoint begin;
    uint64_t drifts = 0;  // found until then
    bool resync = false;  // as an operator's resync wants it
  };
  // Committed and not yet released: what is then to be told.
  struct Written {
    Prepared prepared;  // without what was written
    CommitReport report;
    uint64_t attach_mismatches = 0;
    TimePoint begin;
    TimePoint staged;
  };

  std::optional<Generation> told;  // the engine that the group has heard of
  std::optional<ToStage> to_stage;
  std::optional<Staged> staged;
  std::optional<Written> written;
  bool adoption_tried = false;  // since memory was read
  uint64_t drifts_told = 0;
  bool released = false;                  // the engine rank may run
  std::optional<TimePoint> paused_since;  // for the group, from running
  std::string trouble;                    // of the last staging
};

}  // namespace dws
