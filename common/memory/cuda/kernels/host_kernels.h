// The kernels compiled for the host, by the names they have on the device: what a driver that
// launches on the host runs. For the fake driver of tests, and tests of the kernels themselves;
// addresses in the arguments are addresses of this process.
#pragma once

#include <optional>
#include <string_view>

#include "common/memory/cuda/kernels/kernel_args.h"

namespace dws::cuda {

// The kernel of this name ("dws_stage"); nullopt: there is none.
std::optional<Kernel> FindKernel(std::string_view name);

// Runs all work items of one launch, as one warp would. `args` points to the kernel's struct
// (StageArgs, ...). Returns when it is done. An address that no kernel may touch, misaligned ones
// included, ends the process. Threads: safe from any, as far as the memory is not shared.
void RunOnHost(Kernel kernel, const void* args);

}  // namespace dws::cuda
