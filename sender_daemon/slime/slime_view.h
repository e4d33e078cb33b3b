// How publishing to a folder of slime's versions goes, as operators see it. From slime_publisher.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/model/weight_version.h"

namespace dws {

struct SlimeView {
  std::string folder;                   // empty: none
  std::optional<WeightVersion> newest;  // in the folder, of the stream now
  uint64_t versions = 0;                // written
  uint64_t fulls = 0;                   // of these, full checkpoints
  uint64_t bytes = 0;                   // of the tensors of these
  uint64_t failures = 0;                // tries that came to nothing
  Status trouble;                       // why the last try came to nothing; OK: it did not
};

}  // namespace dws
