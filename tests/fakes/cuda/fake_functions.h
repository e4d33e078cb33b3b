// The symbols that the fake driver exports: those of driver_api.h, so their types are ours, and a
// few that only clients in other languages call.
#pragma once

#include "common/memory/cuda/driver_api.h"

#define DWS_FAKE_CUDA_EXPORT extern "C" __attribute__((visibility("default")))

namespace dws::cuda {

#define DWS_FAKE_CUDA_DECLARE(member, symbol, parameters) \
  DWS_FAKE_CUDA_EXPORT DriverResult symbol parameters;
DWS_CUDA_DRIVER_FUNCTIONS(DWS_FAKE_CUDA_DECLARE)
#undef DWS_FAKE_CUDA_DECLARE

DWS_FAKE_CUDA_EXPORT DriverResult cuCtxSynchronize();
DWS_FAKE_CUDA_EXPORT DriverResult cuDevicePrimaryCtxGetState(int device, unsigned* flags,
                                                             int* active);
DWS_FAKE_CUDA_EXPORT DriverResult cuMemcpyHtoD_v2(uint64_t target, const void* source, size_t size);
DWS_FAKE_CUDA_EXPORT DriverResult cuMemcpyDtoH_v2(void* target, uint64_t source, size_t size);

}  // namespace dws::cuda
