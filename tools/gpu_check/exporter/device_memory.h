// Allocates device memory in all the ways that trainers and engines do.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/status.h"
#include "common/memory/cuda/cuda_device.h"

namespace dws::gpu_check {

// Allocates at least `size_bytes` of `device`, whose context is the thread's, and returns the
// address. `kind` is one of exporter.h; `chunk_bytes` is for kChunks. The memory is never freed,
// because its owner is a process that ends. INVALID_ARGUMENT: an unknown kind. RESOURCE_EXHAUSTED,
// INTERNAL: an error of the driver.
Result<uint64_t> AllocateAs(const cuda::CudaDevice& device, std::string_view kind,
                            uint64_t size_bytes, uint64_t chunk_bytes);

}  // namespace dws::gpu_check
