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

struct EncodeOptions {
  // Absolute modes (raw, dense raw, dense zstd) need nothing of the receiver but do not compose. A
  // sender's retained deltas are relative only; full tensors are absolute only.
  bool relative = true;
  bool absolute = false;
  bool zstd = false;  // try dense zstd where absolute modes are allowed: smaller and slower
};

// Encodes `changes` of a block whose new state is `after` (element count and absolute values come
// from it). With no changes and relative modes allowed: kEmpty. With absolute modes only: dense,
// whatever the changes. At least one family must be allowed.
EncodedBlock EncodeBlock(DType dtype, const BlockChanges& changes, ByteSpan after,
                         const EncodeOptions& options);

// A full tensor's block: dense raw, or dense zstd where that is smaller and allowed.
EncodedBlock EncodeFullBlock(DType dtype, ByteSpan block, bool zstd);

// What encoding of one block after the other reuses: a worker has one.
struct EncodeScratch {
  SplitRicePlan split_rice;
  DenseUlpPlan dense_ulp;
  ClassSplitPlan class_split;
};

// Relative encoding of steps alone: no old or new weights needed. For captures and squashed deltas.
EncodedBlock EncodeSteps(DType dtype, const BlockChanges& changes, uint32_t element_count,
                         EncodeScratch& scratch);
EncodedBlock EncodeSteps(DType dtype, const BlockChanges& changes, uint32_t element_count);

// The same as dense ulp, with positions not looked at: for who knows that they cost more. Leaves
// `scratch` without what EncodeClassSplit needs.
EncodedBlock EncodeDenseSteps(DType dtype, const BlockChanges& changes, uint32_t element_count,
                              EncodeScratch& scratch);

// The same changes class-split, for links where bytes are dear; nullopt unless it is smaller than
// `relative`, which EncodeSteps has just made of them with the same `scratch`, or as small as one
// of dense ulp. `before` is the block they change, `table` fits `dtype` (class_split.h).
std::optional<EncodedBlock> EncodeClassSplit(DType dtype, const BlockChanges& changes,
                                             const EncodedBlock& relative, ByteSpan before,
                                             const ClassTable& table, EncodeScratch& scratch);

}  // namespace dws
