// How long work tells how far it is, and is asked to end.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "common/base/status.h"

namespace dws::checkpoint {

struct ProgressStep {
  std::string_view step;  // "comparing weights"
  uint64_t done_bytes = 0;
  uint64_t total_bytes = 0;
};

// Called from the thread that called the work, every few dozen megabytes and at the end of a step.
// An error (CANCELLED) ends the work with it: what was begun is cleared away.
using Progress = std::function<Status(const ProgressStep&)>;

// For whoever does not look.
inline Status NoProgress(const ProgressStep& /*step*/) { return OkStatus(); }

}  // namespace dws::checkpoint
