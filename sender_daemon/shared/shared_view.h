// The state of publishing to a shared directory, as operators see it. From shared_publisher.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/model/weight_version.h"

namespace dws {

struct SharedView {
  std::string folder;                   // empty: none
  std::optional<WeightVersion> newest;  // in the directory, of the current stream
  uint64_t deltas = 0;                  // written with their delta only
  uint64_t anchors = 0;                 // written as one, or made of a version that had its delta
  uint64_t bytes = 0;                   // of both
  uint64_t failures = 0;                // attempts that failed
  size_t receivers = 0;                 // present according to their reports
  Status trouble;                       // why the last attempt failed; OK if it did not
};

}  // namespace dws
