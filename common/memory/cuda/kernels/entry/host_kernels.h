// The kernels compiled for the host, by their names on the device. For the fake driver of tests,
// which launches on the host, and for tests of the kernels. Addresses in the arguments are
// addresses of this process.
#pragma once

#include <optional>
#include <string_view>

#include "common/memory/cuda/kernels/kernel_args.h"

namespace dws::cuda {

// The kernel of this name ("dws_stage"); nullopt: there is none.
std::optional<Kernel> FindKernel(std::string_view name);

// Runs all work items of one launch, as one warp would, and returns when they are done. `args`
// points to the kernel's struct (StageArgs, ...). An invalid or misaligned address ends the
// process. Threads: safe from any, if the memory is not shared.
void RunOnHost(Kernel kernel, const void* args);

}  // namespace dws::cuda
