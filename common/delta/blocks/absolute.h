// The absolute modes: new values as they are, for receivers that need no base (FORMAT.md, modes 1,
// 5 and 6).
#pragma once

#include <cstdint>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/delta/blocks/block.h"
#include "common/model/tensor_spec.h"

namespace dws {

// Payload bytes of mode raw with `nnz` changes.
inline uint64_t RawBytes(DType dtype, uint64_t nnz) { return nnz * (2 + ElementBytes(dtype)); }

// `after` is the block's new state. WriteRaw takes the values of `changes` from it.
EncodedBlock WriteRaw(DType dtype, const BlockChanges& changes, ByteSpan after);
EncodedBlock WriteDenseRaw(DType dtype, ByteSpan after);
// Separates the bytes of the elements (all first bytes, all second bytes, ...), then compresses.
EncodedBlock WriteDenseZstd(DType dtype, ByteSpan after);

// DATA_LOSS: the payload is damaged. `block.nnz` is 1 to `element_count`.
Status ReadRaw(DType dtype, uint32_t element_count, const EncodedBlockView& block,
               DecodedBlock& decoded);
Status ReadDenseRaw(DType dtype, uint32_t element_count, const EncodedBlockView& block,
                    DecodedBlock& decoded);
Status ReadDenseZstd(DType dtype, uint32_t element_count, const EncodedBlockView& block,
                     DecodedBlock& decoded);

}  // namespace dws
