// Copies megabytes that nobody reads soon. The copy bypasses the cache: it reads and writes memory
// once each, and evicts nothing.
#pragma once

#include "common/base/bytes.h"

namespace dws {

// `to` and `from` have one size and do not overlap. `from` may change meanwhile: then each copied
// word is the old or the new one. The copy is visible to other threads when the function returns.
void StreamCopy(MutableByteSpan to, ByteSpan from);

}  // namespace dws
