// The state of publishing to a slime folder, as operators see it. From slime_publisher.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/model/weight_version.h"

namespace dws {

struct SlimeView {
  std::string folder;                   // empty: none
  std::optional<WeightVersion> newest;  // in the folder, of the current stream
  uint64_t versions = 0;                // written
  uint64_t fulls = 0;                   // of these, full checkpoints
  uint64_t bytes = 0;                   // of their tensors
  uint64_t failures = 0;                // attempts that failed
  Status trouble;                       // why the last attempt failed; OK if it did not
};

}  // namespace dws
