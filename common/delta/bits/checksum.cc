// The codec's only use of xxHash, so that no header needs it.
#include "common/delta/bits/checksum.h"

#include <xxhash.h>

namespace dws {

uint64_t Checksum(ByteSpan bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace dws
