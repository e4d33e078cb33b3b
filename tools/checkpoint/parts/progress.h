// How long-running work reports its progress and can be cancelled.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "common/base/status.h"

namespace dws::checkpoint {

// The progress of the current step.
struct ProgressStep {
  std::string_view step;  // "comparing weights"
  uint64_t done_bytes = 0;
  uint64_t total_bytes = 0;
};

// Called on the thread that runs the work, every few dozen megabytes and at the end of a step. If
// it returns an error (CANCELLED), the work removes its partial output and returns the error.
using Progress = std::function<Status(const ProgressStep&)>;

}  // namespace dws::checkpoint
