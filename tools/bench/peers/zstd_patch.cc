// Does what `zstd --patch-from` does: the default level, the old file as prefix, a window that
// holds both, long distance matching.
#include <zstd.h>

#include <bit>

#include "tools/bench/peers/peer.h"
#include "tools/bench/peers/whole_model.h"

namespace dws::bench {
namespace {

Result<std::vector<std::byte>> Encode(std::span<const TensorPair> tensors) {
  const std::vector<std::byte> before = JoinBefore(tensors);
  const std::vector<std::byte> after = JoinAfter(tensors);
  const int window_log = std::max(10, static_cast<int>(std::bit_width(before.size())) + 1);
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, ZSTD_CLEVEL_DEFAULT);
  ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
  ZSTD_CCtx_setParameter(context, ZSTD_c_enableLongDistanceMatching, 1);
  ZSTD_CCtx_refPrefix(context, before.data(), before.size());
  std::vector<std::byte> frame(ZSTD_compressBound(after.size()));
  const size_t size =
      ZSTD_compress2(context, frame.data(), frame.size(), after.data(), after.size());
  ZSTD_freeCCtx(context);
  if (ZSTD_isError(size) != 0) {
    return InternalError("zstd with a prefix: {}", ZSTD_getErrorName(size));
  }
  frame.resize(size);
  return frame;
}

Status Decode(ByteSpan bytes, std::span<const TensorPair>, TensorStates& states) {
  const std::vector<std::byte> before = Join(states);
  std::vector<std::byte> after(before.size());
  ZSTD_DCtx* const context = ZSTD_createDCtx();
  ZSTD_DCtx_setParameter(context, ZSTD_d_windowLogMax, 31);
  ZSTD_DCtx_refPrefix(context, before.data(), before.size());
  const size_t size =
      ZSTD_decompressDCtx(context, after.data(), after.size(), bytes.data(), bytes.size());
  ZSTD_freeDCtx(context);
  if (ZSTD_isError(size) != 0) {
    return DataLossError("zstd with a prefix: {}", ZSTD_getErrorName(size));
  }
  return Split(ByteSpan(after).first(size), states);
}

}  // namespace

Peer ZstdPatch() {
  return {.id = "P2f",
          .name = "zstd --patch-from",
          .bar = std::nullopt,
          .encode = Encode,
          .decode = Decode};
}

}  // namespace dws::bench
