// zstd for manifests and dense blocks. Each is one zstd frame whose uncompressed size the reader
// already knows.
#pragma once

#include <cstddef>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace dws {

// The bytes of one zstd frame (level 3). The same input gives the same bytes under one version of
// zstd.
std::vector<std::byte> Compress(ByteSpan bytes);

// Decompresses one frame into `out`, which must have exactly its uncompressed size. DATA_LOSS: the
// frame is damaged or has another size. Allocates no more than zstd's window, which is at most the
// size of `out`.
Status Decompress(ByteSpan compressed, MutableByteSpan out);

}  // namespace dws
