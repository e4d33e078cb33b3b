// How publishing to a shared directory goes, as operators see it. From shared_publisher.h.
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
  std::optional<WeightVersion> newest;  // in the directory, of the stream now
  uint64_t deltas = 0;                  // written, each with its delta only
  uint64_t anchors = 0;                 // written, or made of one that was there with its delta
  uint64_t bytes = 0;                   // of both
  uint64_t failures = 0;                // tries that came to nothing
  size_t receivers = 0;                 // present by their reports
  Status trouble;                       // why the last try came to nothing; OK: it did not
};

}  // namespace dws
