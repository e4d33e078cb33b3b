#include "tests/common/delta/encode_block.h"

#include <utility>

#include "common/base/check.h"
#include "common/delta/blocks/absolute.h"

namespace dws {

EncodedBlock EncodeBlock(DType dtype, const BlockChanges& changes, ByteSpan after,
                         const EncodeOptions& options) {
  DWS_CHECK(options.relative || options.absolute);
  DWS_CHECK(after.size() % ElementBytes(dtype) == 0);
  if (!options.relative) return EncodeFullBlock(dtype, after, options.zstd);
  const uint32_t element_count = static_cast<uint32_t>(after.size() / ElementBytes(dtype));
  EncodedBlock best = EncodeSteps(dtype, changes, element_count);
  if (!options.absolute || best.mode == BlockMode::kEmpty) return best;

  if (RawBytes(dtype, changes.size()) <= best.payload.size())
    best = WriteRaw(dtype, changes, after);
  if (after.size() < best.payload.size()) best = WriteDenseRaw(dtype, after);
  if (options.zstd) {
    EncodedBlock compressed = WriteDenseZstd(dtype, after);
    if (compressed.payload.size() < best.payload.size()) best = std::move(compressed);
  }
  return best;
}

}  // namespace dws
