// dws_stage and dws_stage_split: decode blocks into staged entries (kernel_args.h describes their
// input and output).
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

// Tells which blocks of a launch a kernel stages. Class-split needs more registers than the other
// modes, so it has a kernel of its own: then more warps of the other kernel run at a time.
DWS_KERNEL constexpr bool IsClassSplit(uint8_t mode) { return mode == 3; }

// Stages one block of a mode other than class-split. False: it is damaged, or its mode is unknown.
struct StageListedOrDense {
  static constexpr bool kClassSplit = false;

  template <typename Bits>
  DWS_KERNEL bool One(const StageTask<Bits>& task, const StageArgs& /*args*/,
                      const StageBlock& block, KernelDigest& difference) const {
    switch (block.mode) {
      case 1:
        return StageRaw(task, difference);
      case 2:
        return StageSplitRice(task, difference);
      case 4:
        return StageDenseUlp(task, difference);
      case 5:
        return StageDenseRaw(task, difference);
      default:
        return false;
    }
  }
};

struct StageSplit {
  static constexpr bool kClassSplit = true;
  ClassScratch& scratch;

  template <typename Bits>
  DWS_KERNEL bool One(const StageTask<Bits>& task, const StageArgs& args, const StageBlock& block,
                      KernelDigest& difference) const {
    return StageClassSplit(task, ItemAt<KernelClassTable>(args.tables, block.table), scratch,
                           difference);
  }
};

template <typename Stage>
DWS_KERNEL void StageBlocks(const Warp& warp, const StageArgs& args, const WarpShare& share,
                            const Stage& stage) {
  const auto step = static_cast<uint32_t>(share.step);
  for (auto i = static_cast<uint32_t>(share.first); i < args.block_count; i += step) {
    const StageBlock& block = ItemAt<StageBlock>(args.blocks, i);  // not in registers
    if (IsClassSplit(block.mode) != Stage::kClassSplit) continue;
    bool sound = false;
    KernelDigest difference;
    if (block.payload_bytes <= kPayloadBytesMax && block.elements <= kBlockElementsMax &&
        block.nnz >= 1 && block.nnz <= block.elements) {
      WithElementBits(block.element.bytes, [&](auto bits) DWS_INLINE {
        sound = stage.One(StageTask<decltype(bits)>(warp, args, block), args, block, difference);
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
