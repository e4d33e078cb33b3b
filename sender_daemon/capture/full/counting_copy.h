// Copies a block and counts what that changes, in one pass over both.
#pragma once

#include <cstdint>

#include "common/base/bytes.h"

namespace dws {

// Copies `from` to `to`, of equal sizes: whole elements of `element_bytes` (1, 2, 4 or 8). Returns
// how many elements of `to` have changed. Loads every byte of `from` once: the counted bytes are
// the copied bytes, even if the owner of `from` writes meanwhile.
uint64_t CopyCounting(uint32_t element_bytes, ByteSpan from, MutableByteSpan to);

}  // namespace dws
