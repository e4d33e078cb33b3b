// Device memory for tests in one process: an allocation of this process that is imported as if it
// were another's. (VMM descriptors may be; legacy handles may not.)
#pragma once

#include <cstdint>

#include "common/memory/cuda/cuda_device.h"
#include "common/memory/cuda/ipc/cuda_region.h"

namespace dws::cuda {

// The first device, fake or real, with the kernels of this build; opened once. Null: there is no
// driver, so that what needs one is skipped.
CudaDevicePtr TestDevice();

// A region of at least `size_bytes` zeros; dies when anything fails.
CudaRegion MakeRegion(const CudaDevicePtr& device, uint64_t size_bytes);

}  // namespace dws::cuda
