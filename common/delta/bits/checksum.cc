// xxHash is included only here in the codec, so that no header needs it.
#include "common/delta/bits/checksum.h"

#include <xxhash.h>

namespace dws {

uint64_t Checksum(ByteSpan bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace dws
