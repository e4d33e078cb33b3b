// Dense ulp: a step for every element of a block, zigzag-coded in planes (FORMAT.md, "Mode 4: dense
// ulp"). For tensors that change nearly everywhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/delta/blocks/block.h"
#include "common/delta/blocks/values.h"
#include "common/model/tensor_spec.h"

namespace dws {

// Reused for the next blocks to keep its memory.
struct DenseUlpPlan {
  std::vector<uint64_t> values;  // zigzag of each element's step
  ValueCoding coding;

  uint64_t PayloadBytes() const { return CeilDiv(coding.bits, 8); }
};

void PlanDenseUlp(DType dtype, const BlockChanges& changes, uint32_t element_count,
                  DenseUlpPlan& plan);
EncodedBlock WriteDenseUlp(const DenseUlpPlan& plan, uint32_t nnz);

// What the changes of a block cost at least.
struct DenseCost {
  uint32_t changed = 0;
  uint32_t up = 0;    // of these, positive steps
  uint32_t wide = 0;  // of these, steps other than +-1
};

// A lower bound of PayloadBytes for `element_count` elements. If every change is one step down, a
// block takes one bit an element. Otherwise it takes two bits an element, or the Rice code of
// parameter 0: one bit an element, one more for a step down, and two more for a step up.
constexpr uint64_t DenseUlpBytesMin(uint32_t element_count, const DenseCost& cost) {
  if (cost.up == 0 && cost.wide == 0) return CeilDiv(element_count, 8);
  return CeilDiv(element_count + std::min(element_count, cost.changed + cost.up), 8);
}

// Fills positions and steps of the elements whose step is not zero. DATA_LOSS: the payload is
// damaged; the message says where.
Status ReadDenseUlp(DType dtype, uint32_t element_count, const EncodedBlockView& block,
                    DecodedBlock& decoded);

}  // namespace dws
