// Memory of this process, handed over: the other side of cuda_region.h. For tests and tools;
// trainers and engines do the same in Python.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/memory/cuda/cuda_device.h"
#include "common/memory/region_handle.h"

namespace dws::cuda {

// What a tensor takes of device memory.
struct DeviceRange {
  uint64_t address = 0;
  uint64_t size_bytes = 0;  // at least 1
};

struct ExportedMemory {
  struct Place {
    uint32_t region = 0;
    uint64_t offset_bytes = 0;
  };

  std::vector<RegionHandle> regions;
  std::vector<UniqueFd> descriptors;  // of all regions, in order
  std::vector<Place> places;          // of the ranges asked for, in their order
};

// Handles for the allocations that `ranges` lie in: a region an allocation, or a run of VMM chunks
// as far as a range needs it, each handed over once. The driver is asked which kind of handle an
// allocation can have: legacy, a POSIX descriptor, fabric, or that of a pool. INVALID_ARGUMENT: no
// memory of this device, or not all of it mapped. UNIMPLEMENTED: it cannot be shared; says why, and
// the remedy. INTERNAL: the driver's error.
Result<ExportedMemory> ExportMemory(const CudaDevice& device, std::span<const DeviceRange> ranges);

}  // namespace dws::cuda
