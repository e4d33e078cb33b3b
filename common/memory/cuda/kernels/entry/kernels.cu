// The kernels on the device: the only file that nvcc compiles. A thread block is kWarpsPerBlock
// independent warps; work items go to all warps of the grid in turn.
#include "common/memory/cuda/kernels/commit_blocks.h"
#include "common/memory/cuda/kernels/diff/diff_blocks.h"
#include "common/memory/cuda/kernels/diff/diff_list.h"
#include "common/memory/cuda/kernels/digest_blocks.h"
#include "common/memory/cuda/kernels/gather_blocks.h"
#include "common/memory/cuda/kernels/kernel_args.h"
#include "common/memory/cuda/kernels/stage_blocks.h"
#include "common/memory/cuda/kernels/warp.h"
#include "common/memory/cuda/kernels/work_items.h"

namespace dws::cuda {
namespace {

__device__ __forceinline__ kernels::WarpShare ThisWarpsShare() {
  return {uint64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarpLanes,
          uint64_t{gridDim.x} * kWarpsPerBlock};
}

}  // namespace

// Five thread blocks for each multiprocessor: as many as its registers allow without spilling.
extern "C" __global__ void __launch_bounds__(kBlockThreads, 5) dws_stage(StageArgs args) {
  __shared__ kernels::ClassScratch scratch[kWarpsPerBlock];
  kernels::StageBlocks(kernels::Warp(), args, ThisWarpsShare(), scratch[threadIdx.x / kWarpLanes]);
}

extern "C" __global__ void __launch_bounds__(kBlockThreads) dws_commit(CommitArgs args) {
  kernels::CommitBlocks(kernels::Warp(), args, ThisWarpsShare());
}

extern "C" __global__ void __launch_bounds__(kBlockThreads) dws_digest(DigestArgs args) {
  kernels::DigestBlocks(kernels::Warp(), args, ThisWarpsShare());
}

// Seven thread blocks for each multiprocessor: as many as the registers of an H100 allow without
// spilling.
extern "C" __global__ void __launch_bounds__(kBlockThreads, 7) dws_diff(DiffArgs args) {
  __shared__ kernels::DiffScratch scratch[kWarpsPerBlock];
  kernels::DiffBlocks(kernels::Warp(), args, ThisWarpsShare(), scratch[threadIdx.x / kWarpLanes]);
}

extern "C" __global__ void __launch_bounds__(kBlockThreads, 8) dws_diff_list(DiffArgs args) {
  kernels::ListDiff(kernels::Warp(), args, ThisWarpsShare());
}

// Without the bound of 8 thread blocks the compiler would use only 32 registers, and spill.
extern "C" __global__ void __launch_bounds__(kBlockThreads, 8) dws_gather(GatherArgs args) {
  kernels::GatherBlocks(kernels::Warp(), args, ThisWarpsShare());
}

}  // namespace dws::cuda
