// Device memory for tests in one process: an allocation of this process that is imported as if it
// were another process's. (VMM descriptors allow that; legacy handles do not.)
#pragma once

#include <cstdint>

#include "common/memory/cuda/cuda_device.h"
#include "common/memory/cuda/ipc/cuda_region.h"

namespace dws::cuda {

// The first device, fake or real, with the kernels of this build; opened once. Null if there is no
// driver, so that tests can be skipped.
CudaDevicePtr TestDevice();
// Another one of this machine; null: there is none.
CudaDevicePtr SecondDevice();

// A region of at least `size_bytes` zeros; aborts on any failure.
CudaRegion MakeRegion(const CudaDevicePtr& device, uint64_t size_bytes);

}  // namespace dws::cuda
