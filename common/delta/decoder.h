// Decodes one block, validating everything. Arbitrary bytes give kDataLoss, never a wrong answer, a
// crash or an allocation that the block's element count does not bound.
#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/delta/blocks/block.h"
#include "common/model/class_table.h"
#include "common/model/tensor_spec.h"

namespace dws {

// What a class-split block is decoded with. Other modes need none of it.
struct BlockBase {
  const ClassTable* classes = nullptr;  // the slice's, from the manifest
  ByteSpan before;                      // the old block, in slice order
};

// DATA_LOSS: the payload is damaged (says what is wrong), or is class-split and its slice has no
// class table. UNIMPLEMENTED: a mode this version does not know, by number. FAILED_PRECONDITION: a
// class-split block, and `base` has not the old block.
Status DecodeBlock(DType dtype, uint32_t element_count, const EncodedBlockView& block,
                   DecodedBlock& decoded, const BlockBase& base = {});

}  // namespace dws
