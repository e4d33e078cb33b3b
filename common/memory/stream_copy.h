// A copy of megabytes that nobody reads soon: past the cache, so that it reads and writes memory
// once each, and evicts nothing.
#pragma once

#include "common/base/bytes.h"

namespace dws {

// `to` and `from` have one size and do not overlap. `from` may change meanwhile: then what is copied
// of it is old or new, word by word. Visible to other threads when it returns.
void StreamCopy(MutableByteSpan to, ByteSpan from);

}  // namespace dws
