// The kinds of memory that an exporter can own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/memory/cuda/ipc/cuda_export.h"

namespace dws::cuda {

// Lifecycle: frees what it made.
class OwnedMemory {
 public:
  virtual ~OwnedMemory() = default;
  std::vector<DeviceRange> ranges;
};

// "legacy", "tensors" (5,000 in three allocations), "chunk", "chunks", "fabric", "unshared" (a
// chunk that cannot be shared), "pool", "default pool".
Result<std::unique_ptr<OwnedMemory>> MakeScenario(const std::string& name, CudaDevicePtr device);

}  // namespace dws::cuda
