// The kernels on the device: the only file that nvcc compiles. A thread block is kWarpsPerBlock
// independent warps; work items go to all warps of the grid in turn.
#include "common/memory/cuda/kernels/commit_blocks.h"
#include "common/memory/cuda/kernels/diff/diff_blocks.h"
#include "common/memory/cuda/kernels/diff/diff_list.h"
#include "common/memory/cuda/kernels/digest_blocks.h"
#include "common/memory/cuda/kernels/gather_blocks.h"
#include "common/memory/cuda/kernels/kernel_args.h"
#include "common/memory/cuda/kernels/quantise/quantise_tiles.h"
#include "common/memory/cuda/kernels/stage_blocks.h"
#include "common/memory/cuda/kernels/warp.h"
#include "common/memory/cuda/kernels/work_items.h"

namespace dws::cuda {
namespace {

__device__ __forceinline__ kernels::WarpShare ThisWarpsShare() {
  return {uint64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarpLanes,
          uint64_t{gridDim.x} * kWarpsPerBlock};
}

// Thread blocks for each multiprocessor: the registers allow so many without spilling.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr uint32_t kStageBlocks = 7;
constexpr uint32_t kStageSplitBlocks = 5;
#else
constexpr uint32_t kStageBlocks = 8;
constexpr uint32_t kStageSplitBlocks = 6;
#endif

}  // namespace

extern "C" __global__ void __launch_bounds__(kBlockThreads, kStageBlocks)
    dws_stage(StageArgs args) {
  kernels::StageBlocks(kernels::Warp(), args, ThisWarpsShare(), kernels::StageListedOrDense());
}

extern "C" __global__ void __launch_bounds__(kBlockThreads, kStageSplitBlocks)
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

// Seven thread blocks for each multiprocessor: the registers of an H100 allow so many without
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

// Without the bound of 8 thread blocks the compiler would use only 56 registers, and spill.
extern "C" __global__ void __launch_bounds__(kBlockThreads, 8) dws_quantise(QuantiseArgs args) {
  kernels::QuantiseTiles(kernels::Warp(), args, ThisWarpsShare());
}

}  // namespace dws::cuda
