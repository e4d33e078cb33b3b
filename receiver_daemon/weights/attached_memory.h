// The memory that one engine rank attached: its mapped regions, and which canonical slices they
// hold at which places. Everybody who works on the memory holds a reference to it. So the memory of
// a rank that vanishes is unmapped only after that work has stopped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/memory/cuda/ipc/region_import.h"
#include "common/model/weight_version.h"
#include "receiver_daemon/weights/engine_mapping.h"

namespace dws {

// What one engine rank has handed over.
struct HandedMemory {
  // The engine rank's connection. It is the first member, so it is closed last: its close tells the
  // engine that nobody uses the memory any longer.
  UniqueFd connection;
  std::vector<MappedRegion> regions;
};

// The attached regions together with the slices of one layout that they hold.
struct AttachedMemory {
  std::shared_ptr<HandedMemory> handed = std::make_shared<HandedMemory>();
  uint32_t engine_rank = 0;
  Generation generation;  // of the registration
  EngineMapping mapping;

  const std::vector<MappedRegion>& regions() const { return handed->regions; }
};

using AttachedMemoryPtr = std::shared_ptr<const AttachedMemory>;

}  // namespace dws
