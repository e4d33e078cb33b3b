// Mode A: the changes of a block as gaps, signs and exceptions, all in planes (FORMAT.md, "Mode 2:
// split-Rice"). Needs nothing of the block but its element count to encode, and the old values of
// the changed elements to apply.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/delta/block.h"
#include "common/delta/positions.h"
#include "common/delta/values.h"
#include "common/model/tensor_spec.h"

namespace dws {

// How the changes of one block are coded, with the exact cost.
struct SplitRicePlan {
  GapCoding gaps;
  std::vector<uint16_t> exceptions;  // which changes are no steps of +-1
  std::vector<uint64_t> magnitudes;  // |step| - 2 of each exception
  GapCoding exception_gaps;          // meaningless without exceptions
  ValueCoding exception_magnitudes;  // the same
  uint64_t bits = 0;

  uint64_t PayloadBytes() const { return CeilDiv(bits, 8); }
};

// `changes` is not empty.
SplitRicePlan PlanSplitRice(DType dtype, const BlockChanges& changes);
EncodedBlock WriteSplitRice(DType dtype, const BlockChanges& changes, const SplitRicePlan& plan);

// Fills positions and steps. `block.nnz` is 1 to `element_count`. DATA_LOSS says which plane is
// damaged.
Status ReadSplitRice(DType dtype, uint32_t element_count, const EncodedBlockView& block,
                     DecodedBlock& decoded);

}  // namespace dws
