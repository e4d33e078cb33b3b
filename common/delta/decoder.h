// Decodes one block, validating everything. Arbitrary bytes give kDataLoss, never a wrong answer, a
// crash or an allocation that the block's element count does not bound.
#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/delta/block.h"
#include "common/model/tensor_spec.h"

namespace dws {

// DATA_LOSS: the payload is damaged (says what is wrong). UNIMPLEMENTED: a mode this version does
// not know, by name or number.
Status DecodeBlock(DType dtype, uint32_t element_count, const EncodedBlockView& block,
                   DecodedBlock& decoded);

}  // namespace dws
