// One zstd frame with its content size, in the form that the peers' own tools write.
#pragma once

#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace dws::bench {

std::vector<std::byte> CompressFrame(ByteSpan bytes, int level);
// DATA_LOSS: not a frame with a content size, or damaged.
Result<std::vector<std::byte>> DecompressFrame(ByteSpan frame);

}  // namespace dws::bench
