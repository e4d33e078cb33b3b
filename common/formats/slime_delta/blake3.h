// BLAKE3, the plain hash with 32 bytes of output, for slime's checksum format of that name. Debian
// 12 has no library for it. Portable and not optimized; fast paths use xxh3-128.
#pragma once

#include <array>
#include <cstdint>

#include "common/base/bytes.h"

namespace dws::slime {

// Section 2 of the BLAKE3 paper. Stack use grows with the logarithm of the size.
std::array<uint8_t, 32> Blake3(ByteSpan bytes);

}  // namespace dws::slime
