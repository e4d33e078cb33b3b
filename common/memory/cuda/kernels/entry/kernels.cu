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

// As many thread blocks for each multiprocessor as its registers allow without spilling. Both can be
// set on nvcc's command line, to be measured with gpu_check --kernels.
#ifndef DWS_STAGE_BLOCKS
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define DWS_STAGE_BLOCKS 7
#define DWS_STAGE_SPLIT_BLOCKS 5
#else
#define DWS_STAGE_BLOCKS 8
#define DWS_STAGE_SPLIT_BLOCKS 6
#endif
#endif
extern "C" __global__ void __launch_bounds__(kBlockThreads, DWS_STAGE_BLOCKS)
    dws_stage(StageArgs args) {
  kernels::StageBlocks(kernels::Warp(), args, ThisWarpsShare(), kernels::StageListedOrDense());
}

extern "C" __global__ void __launch_bounds__(kBlockThreads, DWS_STAGE_SPLIT_BLOCKS)
    dws_stage_split(StageArgs args) {
  __shared__ kernels::ClassScratch scratch[kWarpsPerBlock];
  kernels::StageBlocks(kernels::Warp(), args, ThisWarpsShare(),
                       kernels::StageSplit{scratch[threadIdx.x / kWarpLanes]});
}

extern "C" __global__ void __launch_bounds__(kBlockThreads) dws_commit(CommitArgs args) {
  kernels::CommitBlocks(kernels::Warp(), args, ThisWarpsShare());
}

extern "C" __global__ void __launch_bounds__(kBlockThreads, 9) dws_digest(DigestArgs args) {
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
