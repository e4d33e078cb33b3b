// Chooses the mode of a block by exact cost and encodes it. Pure: the same input and options give
// the same bytes on every machine.
#pragma once

#include <cstdint>
#include <optional>

#include "common/base/bytes.h"
#include "common/delta/blocks/block.h"
#include "common/delta/blocks/class_split.h"
#include "common/delta/blocks/dense_ulp.h"
#include "common/delta/blocks/split_rice.h"
#include "common/model/tensor_spec.h"

namespace dws {

// A full tensor's block: dense raw, or dense zstd if that is allowed and smaller.
EncodedBlock EncodeFullBlock(DType dtype, ByteSpan block, bool zstd);

// Memory that encoding reuses from block to block: one for each worker.
struct EncodeScratch {
  SplitRicePlan split_rice;
  DenseUlpPlan dense_ulp;
  ClassSplitPlan class_split;
};

// Relative encoding of steps: needs neither old nor new weights. For captures and squashed deltas.
EncodedBlock EncodeSteps(DType dtype, const BlockChanges& changes, uint32_t element_count,
                         EncodeScratch& scratch);
EncodedBlock EncodeSteps(DType dtype, const BlockChanges& changes, uint32_t element_count);

// Like EncodeSteps, but always as dense ulp. Use this if position coding is known to be larger.
// Afterwards `scratch` does not have what EncodeClassSplit needs.
EncodedBlock EncodeDenseSteps(DType dtype, const BlockChanges& changes, uint32_t element_count,
                              EncodeScratch& scratch);

// Encodes the same changes class-split, for slow links. `relative` is the result of EncodeSteps for
// these changes, just before, with the same `scratch`. Returns nullopt unless class-split is
// smaller than `relative`, or equally small if `relative` is dense ulp. `before` is the block
// before the changes, `table` fits `dtype` (class_split.h).
std::optional<EncodedBlock> EncodeClassSplit(DType dtype, const BlockChanges& changes,
                                             const EncodedBlock& relative, ByteSpan before,
                                             const ClassTable& table, EncodeScratch& scratch);

}  // namespace dws
