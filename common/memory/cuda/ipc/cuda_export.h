// Exports memory of this process: the other side of cuda_region.h. For a sender's copies of its
// snapshot, tests and tools; trainers and engines do the same in Python.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/memory/cuda/cuda_device.h"
#include "common/memory/region_handle.h"

namespace dws::cuda {

// The device memory of a tensor.
struct DeviceRange {
  uint64_t address = 0;
  uint64_t size_bytes = 0;  // at least 1
};

// Handles of the allocations that hold some tensors, and where each tensor lies in them.
struct ExportedMemory {
  struct Place {
    uint32_t region = 0;
    uint64_t offset_bytes = 0;
  };

  std::vector<RegionHandle> regions;
  std::vector<UniqueFd> descriptors;  // of all regions, in order
  std::vector<Place> places;          // of the given ranges, in their order
};

// Handles for the allocations that contain `ranges`. A region is one allocation, or a run of VMM
// chunks as long as the ranges need; each is exported once. The driver decides which kind of handle
// an allocation can have: legacy, a POSIX descriptor, fabric, or the handle of a pool.
// INVALID_ARGUMENT: a range is not memory of this device, or not all of it is mapped.
// UNIMPLEMENTED: the memory cannot be shared; the message says why, and the remedy. INTERNAL: the
// driver's error.
Result<ExportedMemory> ExportMemory(const CudaDevice& device, std::span<const DeviceRange> ranges);

}  // namespace dws::cuda
