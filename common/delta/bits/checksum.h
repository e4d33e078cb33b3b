// The checksum of headers, manifests and frames: XXH3-64, seed 0.
#pragma once

#include <cstdint>

#include "common/base/bytes.h"

namespace dws {

uint64_t Checksum(ByteSpan bytes);

}  // namespace dws
