// What one engine rank handed over: its mapped regions and how they are made of canonical slices.
// Shared: whoever works on the memory holds it, so that a rank that vanishes is unmapped only after
// that work has stopped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/memory/cuda/region_import.h"
#include "common/model/weight_version.h"
#include "receiver_daemon/weights/engine_mapping.h"

namespace dws {

struct AttachedMemory {
  // To whom it belongs. The last to go: its end tells the engine that nobody uses the memory.
  UniqueFd connection;
  uint32_t engine_rank = 0;
  Generation generation;  // of the registration
  EngineMapping mapping;
  std::vector<MappedRegion> regions;
};

using AttachedMemoryPtr = std::shared_ptr<const AttachedMemory>;

}  // namespace dws
