// One warp does the work of a whole launch, or a few do so one after the other: the kernels have no
// order between warps to keep.
#include "common/memory/cuda/kernels/entry/host_kernels.h"

#include "common/memory/cuda/kernels/commit_blocks.h"
#include "common/memory/cuda/kernels/diff/diff_blocks.h"
#include "common/memory/cuda/kernels/diff/diff_list.h"
#include "common/memory/cuda/kernels/digest_blocks.h"
#include "common/memory/cuda/kernels/gather_blocks.h"
#include "common/memory/cuda/kernels/quantise/quantise_tiles.h"
#include "common/memory/cuda/kernels/stage_blocks.h"
#include "common/memory/cuda/kernels/warp.h"
#include "common/memory/cuda/kernels/work_items.h"

namespace dws::cuda {
namespace {

constexpr uint64_t kDiffWarps = 3;

}  // namespace

std::optional<Kernel> FindKernel(std::string_view name) {
  for (uint32_t i = 0; i < kKernelCount; ++i) {
    if (name == kKernelNames[i]) return static_cast<Kernel>(i);
  }
  return std::nullopt;
}

void RunOnHost(Kernel kernel, const void* args) {
  const kernels::Warp warp;
  const kernels::WarpShare all;  // one warp takes all work items
  switch (kernel) {
    case Kernel::kStage:
      return kernels::StageBlocks(warp, *static_cast<const StageArgs*>(args), all,
                                  kernels::StageListedOrDense());
    case Kernel::kStageSplit: {
      kernels::ClassScratch scratch = {};
      return kernels::StageBlocks(warp, *static_cast<const StageArgs*>(args), all,
                                  kernels::StageSplit{scratch});
    }
    case Kernel::kCommit:
      return kernels::CommitBlocks(warp, *static_cast<const CommitArgs*>(args), all);
    case Kernel::kDigest:
      return kernels::DigestBlocks(warp, *static_cast<const DigestArgs*>(args), all);
    case Kernel::kDiff: {
      // Which segment of a block finishes last depends on the order of the warps.
      for (uint64_t first = kDiffWarps; first-- > 0;) {
        kernels::DiffScratch scratch = {};
        kernels::DiffBlocks(warp, *static_cast<const DiffArgs*>(args), {first, kDiffWarps},
                            scratch);
      }
      return;
    }
    case Kernel::kDiffList:
      return kernels::ListDiff(warp, *static_cast<const DiffArgs*>(args), all);
    case Kernel::kGather:
      return kernels::GatherBlocks(warp, *static_cast<const GatherArgs*>(args), all);
    case Kernel::kQuantise:
      return kernels::QuantiseTiles(warp, *static_cast<const QuantiseArgs*>(args), all);
  }
}

}  // namespace dws::cuda
