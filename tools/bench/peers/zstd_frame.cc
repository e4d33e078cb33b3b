// Each frame is made in one call, as in the formats that are compared.
#include "tools/bench/peers/zstd_frame.h"

#include <zstd.h>

#include "common/base/check.h"

namespace dws::bench {

std::vector<std::byte> CompressFrame(ByteSpan bytes, int level) {
  std::vector<std::byte> frame(ZSTD_compressBound(bytes.size()));
  const size_t size = ZSTD_compress(frame.data(), frame.size(), bytes.data(), bytes.size(), level);
  DWS_CHECK(ZSTD_isError(size) == 0);
  frame.resize(size);
  return frame;
}

Result<std::vector<std::byte>> DecompressFrame(ByteSpan frame) {
  const uint64_t size = ZSTD_getFrameContentSize(frame.data(), frame.size());
  if (size == ZSTD_CONTENTSIZE_ERROR || size == ZSTD_CONTENTSIZE_UNKNOWN) {
    return DataLossError("expected a zstd frame that says its size");
  }
  std::vector<std::byte> bytes(size);
  const size_t got = ZSTD_decompress(bytes.data(), size, frame.data(), frame.size());
  if (ZSTD_isError(got) != 0 || got != size) return DataLossError("a zstd frame is damaged");
  return bytes;
}

}  // namespace dws::bench
