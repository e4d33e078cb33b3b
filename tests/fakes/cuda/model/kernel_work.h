// What kernels and copies of a launch occupy on a modelled GPU: the bytes that docs/gpu.md says
// they must move.
#pragma once

#include <cstdint>
#include <functional>

#include "tests/fakes/cuda/model/model_clock.h"

namespace dws::cuda {

// `arguments`: the kernel's struct, after the kernel has run, so that what it counted is known.
// `in_host`: whether an address is of host memory, which the device reads over the bus.
ModelledWork WorkOfKernel(const GpuModel& model, Kernel kernel, const void* arguments,
                          const std::function<bool(uint64_t address)>& in_host);

// A copy of `bytes` between host memory, page-locked or not, and the device, or on the device. A
// setting of bytes moves half as much as a copy.
ModelledWork WorkOfCopy(const GpuModel& model, ModelledOp::Kind kind, uint64_t bytes, bool pinned);
ModelledWork WorkOfSet(const GpuModel& model, uint64_t bytes);

}  // namespace dws::cuda
