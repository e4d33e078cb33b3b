// Compresses into a buffer of its own, not into a vector sized by zstd's bound: that is as large as
// the payload, and the vector would first be filled with zeros.
#include "common/formats/slime_delta/entry_compressor.h"

#include <utility>

#include "common/base/check.h"

namespace dws::slime {

EntryCompressor::EntryCompressor(uint64_t payload_bytes, int level)
    : context_(ZSTD_createCCtx()), buffer_(ZSTD_CStreamOutSize()) {
  DWS_CHECK(context_ != nullptr);
  DWS_CHECK(ZSTD_isError(ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, level)) ==
            0);
  DWS_CHECK(ZSTD_isError(ZSTD_CCtx_setPledgedSrcSize(context_.get(), payload_bytes)) == 0);
}

void EntryCompressor::Add(ByteSpan piece) { Compress(piece, ZSTD_e_continue); }

std::vector<std::byte> EntryCompressor::Finish() {
  Compress({}, ZSTD_e_end);
  entry_.shrink_to_fit();
  return std::move(entry_);
}

void EntryCompressor::Compress(ByteSpan piece, ZSTD_EndDirective directive) {
  ZSTD_inBuffer input = {.src = piece.data(), .size = piece.size(), .pos = 0};
  while (true) {
    ZSTD_outBuffer output = {.dst = buffer_.data(), .size = buffer_.size(), .pos = 0};
    const size_t left = ZSTD_compressStream2(context_.get(), &output, &input, directive);
    DWS_CHECK(ZSTD_isError(left) == 0);
    entry_.insert(entry_.end(), buffer_.begin(),
                  buffer_.begin() + static_cast<std::ptrdiff_t>(output.pos));
    if (directive == ZSTD_e_end ? left == 0 : input.pos == input.size) return;
  }
}

}  // namespace dws::slime
