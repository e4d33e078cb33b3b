// The size that the frame states is checked before the decoder allocates its window.
#include "common/formats/slime_delta/entry_stream.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "common/base/check.h"

namespace dws::slime {
namespace {

constexpr size_t kBufferBytes = 64 << 10;
constexpr int kWindowLogMin = 27;  // what zstd reads by default
constexpr int kWindowLogMax = 31;

}  // namespace

EntrySource MemorySource(ByteSpan entry) {
  return {.size_bytes = entry.size(), .read = [entry](uint64_t offset, MutableByteSpan to) {
            if (!to.empty()) std::memcpy(to.data(), entry.data() + offset, to.size());
            return OkStatus();
          }};
}

EntryStream::EntryStream(EntrySource source)
    : source_(std::move(source)), context_(ZSTD_createDCtx()) {
  DWS_CHECK(context_ != nullptr);
  buffer_.resize(std::min<uint64_t>(kBufferBytes, source_.size_bytes));
}

Result<EntryStream> EntryStream::Open(Encoding encoding, EntrySource source,
                                      uint64_t tensor_bytes) {
  EntryStream stream(std::move(source));
  DWS_RETURN_IF_ERROR(stream.Fill());
  const ByteSpan start(static_cast<const std::byte*>(stream.input_.src), stream.input_.size);
  DWS_ASSIGN_OR_RETURN(stream.payload_bytes_, PayloadBytes(encoding, start, tensor_bytes));
  // Memory of a window that is larger than the payload is allocated, but never touched.
  const int window_log = std::clamp(static_cast<int>(std::bit_width(stream.payload_bytes_)),
                                    kWindowLogMin, kWindowLogMax);
  DWS_CHECK(ZSTD_isError(ZSTD_DCtx_setParameter(stream.context_.get(), ZSTD_d_windowLogMax,
                                                window_log)) == 0);
  return stream;
}

Status EntryStream::Fill() {
  const size_t size = std::min<uint64_t>(buffer_.size(), source_.size_bytes - next_);
  DWS_RETURN_IF_ERROR(source_.read(next_, MutableByteSpan(buffer_).first(size)));
  next_ += size;
  input_ = {.src = buffer_.data(), .size = size, .pos = 0};
  return OkStatus();
}

Status EntryStream::Read(MutableByteSpan to) {
  ZSTD_outBuffer output = {.dst = to.data(), .size = to.size(), .pos = 0};
  while (output.pos < output.size) {
    if (ended_) {
      return DataLossError("a zstd frame that ends before the {} bytes that it states",
                           payload_bytes_);
    }
    if (input_.pos == input_.size && next_ < source_.size_bytes) DWS_RETURN_IF_ERROR(Fill());
    const std::pair before(input_.pos, output.pos);
    const size_t left = ZSTD_decompressStream(context_.get(), &output, &input_);
    if (ZSTD_isError(left) != 0) {
      return DataLossError("a damaged zstd frame: {}", ZSTD_getErrorName(left));
    }
    ended_ = left == 0;
    if (!ended_ && before == std::pair(input_.pos, output.pos) && next_ == source_.size_bytes) {
      return DataLossError("expected one zstd frame of {} bytes, found part of one",
                           source_.size_bytes);
    }
  }
  return OkStatus();
}

Status EntryStream::Finish() {
  // The decoder may still have to read the frame's end, and may find more content there.
  while (!ended_) {
    if (input_.pos == input_.size) {
      if (next_ == source_.size_bytes) {
        return DataLossError("expected one zstd frame of {} bytes, found part of one",
                             source_.size_bytes);
      }
      DWS_RETURN_IF_ERROR(Fill());
    }
    std::array<std::byte, 1> more;
    ZSTD_outBuffer output = {.dst = more.data(), .size = more.size(), .pos = 0};
    const size_t left = ZSTD_decompressStream(context_.get(), &output, &input_);
    if (ZSTD_isError(left) != 0) {
      return DataLossError("a damaged zstd frame: {}", ZSTD_getErrorName(left));
    }
    if (output.pos != 0) {
      return DataLossError("a zstd frame of more than the {} bytes that it states", payload_bytes_);
    }
    ended_ = left == 0;
  }
  if (input_.pos == input_.size && next_ == source_.size_bytes) return OkStatus();
  return DataLossError("expected one zstd frame of {} bytes", source_.size_bytes);
}

}  // namespace dws::slime
