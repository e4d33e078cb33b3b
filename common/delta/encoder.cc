#include "common/delta/encoder.h"

#include <bit>

#include "common/base/check.h"
#include "common/delta/blocks/absolute.h"
#include "common/delta/blocks/dense_ulp.h"
#include "common/delta/blocks/split_rice.h"
#include "common/model/limits.h"

namespace dws {
namespace {

DenseCost CostOf(const SplitRicePlan& plan, size_t changed) {
  DenseCost cost{.changed = static_cast<uint32_t>(changed),
                 .up = static_cast<uint32_t>(changed),
                 .wide = static_cast<uint32_t>(plan.exceptions.size())};
  for (const uint64_t negative : plan.signs) {
    cost.up -= static_cast<uint32_t>(std::popcount(negative));
  }
  return cost;
}

}  // namespace

EncodedBlock EncodeSteps(DType dtype, const BlockChanges& changes, uint32_t element_count,
                         EncodeScratch& scratch) {
  DWS_CHECK(element_count <= limits::kBlockElements && changes.size() <= element_count);
  if (changes.size() == 0) return {};
  SplitRicePlan& split_rice = scratch.split_rice;
  PlanSplitRice(dtype, changes, split_rice);
  // If two modes are equally small, the one with the smaller number wins, so dense ulp must be
  // strictly smaller. It needs at least one bit for each element; the exact size is counted only if
  // it could win.
  if (split_rice.PayloadBytes() > CeilDiv(element_count, 8) &&
      split_rice.PayloadBytes() >
          DenseUlpBytesMin(element_count, CostOf(split_rice, changes.size()))) {
    DenseUlpPlan& dense = scratch.dense_ulp;
    PlanDenseUlp(dtype, changes, element_count, dense);
    if (dense.PayloadBytes() < split_rice.PayloadBytes()) {
      return WriteDenseUlp(dense, static_cast<uint32_t>(changes.size()));
    }
  }
  return WriteSplitRice(changes, split_rice);
}

EncodedBlock EncodeSteps(DType dtype, const BlockChanges& changes, uint32_t element_count) {
  EncodeScratch scratch;
  return EncodeSteps(dtype, changes, element_count, scratch);
}

EncodedBlock EncodeDenseSteps(DType dtype, const BlockChanges& changes, uint32_t element_count,
                              EncodeScratch& scratch) {
  DWS_CHECK(element_count <= limits::kBlockElements && changes.size() <= element_count);
  if (changes.size() == 0) return {};
  PlanDenseUlp(dtype, changes, element_count, scratch.dense_ulp);
  return WriteDenseUlp(scratch.dense_ulp, static_cast<uint32_t>(changes.size()));
}

std::optional<EncodedBlock> EncodeClassSplit(DType dtype, const BlockChanges& changes,
                                             const EncodedBlock& relative, ByteSpan before,
                                             const ClassTable& table, EncodeScratch& scratch) {
  if (relative.mode == BlockMode::kEmpty) return std::nullopt;
  ClassSplitPlan& plan = scratch.class_split;
  PlanClassSplit(dtype, changes, scratch.split_rice, before, table, plan);
  const uint64_t bytes = plan.PayloadBytes();
  // Among equals the mode with the smaller number wins.
  if (bytes > relative.payload.size() ||
      (bytes == relative.payload.size() && relative.mode < BlockMode::kClassSplit)) {
    return std::nullopt;
  }
  return WriteClassSplit(changes, scratch.split_rice, plan);
}

EncodedBlock EncodeFullBlock(DType dtype, ByteSpan block, bool zstd) {
  if (zstd) {
    EncodedBlock compressed = WriteDenseZstd(dtype, block);
    if (compressed.payload.size() < block.size()) return compressed;
  }
  return WriteDenseRaw(dtype, block);
}

}  // namespace dws
