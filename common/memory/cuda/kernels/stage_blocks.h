// dws_stage: decodes blocks into staged entries (kernel_args.h describes its input and output).
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/memory/cuda/kernels/class_heads.h"
#include "common/memory/cuda/kernels/kernel_args.h"
#include "common/memory/cuda/kernels/stage_class_split.h"
#include "common/memory/cuda/kernels/stage_dense.h"
#include "common/memory/cuda/kernels/stage_sparse.h"
#include "common/memory/cuda/kernels/stage_task.h"
#include "common/memory/cuda/kernels/word_mix.h"
#include "common/memory/cuda/kernels/work_items.h"

namespace dws::cuda::kernels {

// False: the block is damaged, or its mode is unknown.
template <typename Bits>
DWS_KERNEL bool StageOne(const Warp& warp, const StageArgs& args, const StageBlock& block,
                         ClassScratch& scratch, KernelDigest& difference) {
  const StageTask<Bits> task(warp, args, block);
  switch (block.mode) {
    case 1:
      return StageRaw(task, difference);
    case 2:
      return StageSplitRice(task, difference);
    case 3:
      return StageClassSplit(task, ItemAt<KernelClassTable>(args.tables, block.table), scratch,
                             difference);
    case 4:
      return StageDenseUlp(task, difference);
    case 5:
      return StageDenseRaw(task, difference);
    default:
      return false;
  }
}

DWS_KERNEL void StageBlocks(const Warp& warp, const StageArgs& args, const WarpShare& share,
                            ClassScratch& scratch) {
  for (uint64_t i = share.first; i < args.block_count; i += share.step) {
    const StageBlock block = ItemAt<StageBlock>(args.blocks, i);
    bool sound = false;
    KernelDigest difference;
    if (block.payload_bytes <= kPayloadBytesMax && block.elements <= kBlockElementsMax &&
        block.nnz >= 1 && block.nnz <= block.elements) {
      WithElementBits(block.element.bytes, [&](auto bits) DWS_INLINE {
        sound = StageOne<decltype(bits)>(warp, args, block, scratch, difference);
      });
    }
    if (sound) {
      AddDigest(warp, args.differences, block.result, difference);
      continue;
    }
    warp.lanes([&](uint32_t lane) {
      if (lane != 0) return;
      AtomicAdd32(args.failures + uint64_t{block.result} * sizeof(uint32_t), 1);
      if (args.commits == 0) return;
      const uint64_t commit = args.commits + i * sizeof(CommitBlock);
      Store<uint32_t>(commit + offsetof(CommitBlock, entries), 0);
    });
  }
}

}  // namespace dws::cuda::kernels
