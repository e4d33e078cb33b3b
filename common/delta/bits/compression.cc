#include "common/delta/bits/compression.h"

#include <zstd.h>

#include "common/base/check.h"

namespace dws {
namespace {

constexpr int kLevel = 3;

}  // namespace

std::vector<std::byte> Compress(ByteSpan bytes) {
  std::vector<std::byte> compressed(ZSTD_compressBound(bytes.size()));
  const size_t size =
      ZSTD_compress(compressed.data(), compressed.size(), bytes.data(), bytes.size(), kLevel);
  DWS_CHECK(ZSTD_isError(size) == 0);
  compressed.resize(size);
  return compressed;
}

Status Decompress(ByteSpan compressed, MutableByteSpan out) {
  // Accepts exactly one frame: ZSTD_decompress alone would also accept several frames, and
  // skippable ones.
  const size_t frame_bytes = ZSTD_findFrameCompressedSize(compressed.data(), compressed.size());
  if (ZSTD_isError(frame_bytes) != 0 || frame_bytes != compressed.size()) {
    return DataLossError("compressed bytes: expected one zstd frame of {} bytes",
                         compressed.size());
  }
  const size_t size = ZSTD_decompress(out.data(), out.size(), compressed.data(), compressed.size());
  if (ZSTD_isError(size) != 0) {
    return DataLossError("compressed bytes: zstd says '{}'", ZSTD_getErrorName(size));
  }
  if (size != out.size()) {
    return DataLossError("compressed bytes: {} bytes after decompression, expected {}", size,
                         out.size());
  }
  return OkStatus();
}

}  // namespace dws
