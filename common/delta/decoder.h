// Decodes one block and validates everything. Bytes that break FORMAT.md give DATA_LOSS. No bytes
// cause a crash, or an allocation that the block's element count does not bound.
#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/delta/blocks/block.h"
#include "common/model/class_table.h"
#include "common/model/tensor_spec.h"

namespace dws {

// What decoding a class-split block needs. Other modes need none of it.
struct BlockBase {
  const ClassTable* classes = nullptr;  // the slice's, from the manifest
  ByteSpan before;                      // the old block, in slice order
};

// DATA_LOSS: the payload is damaged (the message says how), or is class-split and its slice has no
// class table. UNIMPLEMENTED: this version does not know the mode; the message has its number.
// FAILED_PRECONDITION: the block is class-split, and `base` does not have the old block.
Status DecodeBlock(DType dtype, uint32_t element_count, const EncodedBlockView& block,
                   DecodedBlock& decoded, const BlockBase& base = {});

// Changes `bytes`, a whole block in the state before `block`, to the state after it. `classes`: the
// class table of its slice, or nullptr if that has none. Errors as DecodeBlock; then `bytes` is
// unchanged.
Status AdvanceBlock(DType dtype, const EncodedBlockView& block, const ClassTable* classes,
                    MutableByteSpan bytes, DecodedBlock& decoded);

// The inverse of AdvanceBlock, exactly: a step is a difference of ordinals, so subtracting it
// restores the bits before it. FAILED_PRECONDITION: the block has new values, which tell no old
// ones. Other errors as DecodeBlock. After an error `bytes` is unchanged.
Status RevertBlock(DType dtype, const EncodedBlockView& block, MutableByteSpan bytes,
                   DecodedBlock& decoded);

}  // namespace dws
