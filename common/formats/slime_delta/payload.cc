#include "common/formats/slime_delta/payload.h"

#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "common/base/check.h"

namespace dws::slime {
namespace {

constexpr int kLevel = 1;
constexpr uint64_t kOverwriteTensorBytesMax = uint64_t{1} << 32;

struct Sparse {
  size_t number_bytes;
  uint64_t OfCount(uint64_t count) const { return number_bytes + count * (number_bytes + 1); }
};
constexpr Sparse kOverwrite{.number_bytes = 4};
constexpr Sparse kXorSparse{.number_bytes = 8};

uint64_t LoadNumber(const std::byte* from, size_t number_bytes) {
  return number_bytes == 4 ? LoadLe<uint32_t>(from) : LoadLe<uint64_t>(from);
}

void Xor(MutableByteSpan to, ByteSpan with) {
  size_t at = 0;
  for (; at + 8 <= to.size(); at += 8) {
    StoreLe(to.data() + at, LoadLe<uint64_t>(to.data() + at) ^ LoadLe<uint64_t>(with.data() + at));
  }
  for (; at < to.size(); ++at) to[at] ^= with[at];
}

Status CheckEncodable(Encoding encoding, uint64_t tensor_bytes) {
  if (encoding == Encoding::kXorSparse) {
    return InvalidArgumentError("xor_sparse is read, not written: use xor");
  }
  if (encoding == Encoding::kOverwrite && tensor_bytes > kOverwriteTensorBytesMax) {
    return InvalidArgumentError(
        "overwrite counts in 32 bits and cannot carry a tensor of {} bytes: use xor", tensor_bytes);
  }
  return OkStatus();
}

Result<std::vector<std::byte>> EncodeOverwrite(ByteSpan after, std::span<const ByteRun> runs) {
  uint64_t count = 0;
  for (const ByteRun& run : runs) count += run.size_bytes;
  if (count > std::numeric_limits<uint32_t>::max()) {
    return InvalidArgumentError("overwrite cannot carry {} changed bytes: use xor", count);
  }
  std::vector<std::byte> payload(kOverwrite.OfCount(count));
  StoreLe(payload.data(), static_cast<uint32_t>(count));
  std::byte* position = payload.data() + 4;
  std::byte* value = position + 4 * count;
  for (const ByteRun& run : runs) {
    for (uint64_t i = 0; i < run.size_bytes; ++i, position += 4) {
      StoreLe(position, static_cast<uint32_t>(run.offset + i));
    }
    std::memcpy(value, after.data() + run.offset, run.size_bytes);
    value += run.size_bytes;
  }
  return payload;
}

Status CheckSparse(const Sparse& sparse, ByteSpan payload, uint64_t tensor_bytes) {
  if (payload.size() < sparse.number_bytes) {
    return DataLossError("a payload of {} bytes has no count", payload.size());
  }
  const uint64_t count = LoadNumber(payload.data(), sparse.number_bytes);
  if (count > tensor_bytes) {
    return DataLossError("a payload of {} changes for a tensor of {} bytes", count, tensor_bytes);
  }
  if (payload.size() != sparse.OfCount(count)) {
    return DataLossError("a payload of {} bytes, expected {} for {} changes", payload.size(),
                         sparse.OfCount(count), count);
  }
  const std::byte* position = payload.data() + sparse.number_bytes;
  for (uint64_t i = 0; i < count; ++i, position += sparse.number_bytes) {
    const uint64_t at = LoadNumber(position, sparse.number_bytes);
    if (at >= tensor_bytes) {
      return DataLossError("change {} is at byte {} of a tensor of {} bytes", i, at, tensor_bytes);
    }
  }
  return OkStatus();
}

// Calls fn(byte of the tensor, value) for each change of a payload that CheckSparse accepted.
template <typename Fn>
void ForEachChange(const Sparse& sparse, ByteSpan payload, Fn&& fn) {
  const uint64_t count = LoadNumber(payload.data(), sparse.number_bytes);
  const std::byte* position = payload.data() + sparse.number_bytes;
  const std::byte* value = position + sparse.number_bytes * count;
  for (uint64_t i = 0; i < count; ++i, position += sparse.number_bytes) {
    fn(LoadNumber(position, sparse.number_bytes), value[i]);
  }
}

// Whether a payload can have this size, for a tensor of `tensor_bytes`.
bool SizeFits(Encoding encoding, uint64_t size_bytes, uint64_t tensor_bytes) {
  switch (encoding) {
    case Encoding::kXor:
      return size_bytes == tensor_bytes;
    case Encoding::kOverwrite:
      return size_bytes <= kOverwrite.OfCount(tensor_bytes);
    case Encoding::kXorSparse:
      return size_bytes <= kXorSparse.OfCount(tensor_bytes);
    case Encoding::kRuns:
      return size_bytes <= RunsBytesMax(tensor_bytes);
  }
  return false;
}

}  // namespace

std::optional<Encoding> EncodingNamed(std::string_view name) {
  for (const Encoding encoding :
       {Encoding::kXor, Encoding::kOverwrite, Encoding::kXorSparse, Encoding::kRuns}) {
    if (NameOf(encoding) == name) return encoding;
  }
  return std::nullopt;
}

std::string_view NameOf(Encoding encoding) {
  switch (encoding) {
    case Encoding::kXor:
      return "xor";
    case Encoding::kOverwrite:
      return "overwrite";
    case Encoding::kXorSparse:
      return "xor_sparse";
    case Encoding::kRuns:
      return "dws_runs";
  }
  return "";
}

Result<std::vector<std::byte>> EncodePayload(Encoding encoding, ByteSpan before, ByteSpan after) {
  if (before.size() != after.size()) {
    return InvalidArgumentError("{} bytes before and {} after: a delta keeps a tensor's size",
                                before.size(), after.size());
  }
  DWS_RETURN_IF_ERROR(CheckEncodable(encoding, after.size()));
  if (encoding == Encoding::kXor) {
    std::vector<std::byte> payload(after.begin(), after.end());
    Xor(payload, before);
    return payload;
  }
  if (encoding == Encoding::kOverwrite)
    return EncodeOverwrite(after, ChangedRuns(before, after, 0));
  return EncodeRuns(after, ChangedRuns(before, after, kRunJoinBytes));
}

std::vector<std::byte> CompressEntry(ByteSpan payload) {
  std::vector<std::byte> entry(ZSTD_compressBound(payload.size()));
  const size_t size =
      ZSTD_compress(entry.data(), entry.size(), payload.data(), payload.size(), kLevel);
  DWS_CHECK(ZSTD_isError(size) == 0);
  // Copy, to release the spare room of the bound, which is as large as the payload.
  return {entry.begin(), entry.begin() + static_cast<std::ptrdiff_t>(size)};
}

Result<std::vector<std::byte>> DecodeEntry(Encoding encoding, ByteSpan entry,
                                           uint64_t tensor_bytes) {
  if (encoding == Encoding::kOverwrite && tensor_bytes > kOverwriteTensorBytesMax) {
    return InvalidArgumentError("overwrite counts in 32 bits, and its tensor has {} bytes",
                                tensor_bytes);
  }
  const size_t frame_bytes = ZSTD_findFrameCompressedSize(entry.data(), entry.size());
  if (ZSTD_isError(frame_bytes) != 0 || frame_bytes != entry.size()) {
    return DataLossError("expected one zstd frame of {} bytes", entry.size());
  }
  const unsigned long long size_bytes = ZSTD_getFrameContentSize(entry.data(), entry.size());
  if (size_bytes == ZSTD_CONTENTSIZE_ERROR || size_bytes == ZSTD_CONTENTSIZE_UNKNOWN) {
    return DataLossError("expected a zstd frame that states its content size");
  }
  if (!SizeFits(encoding, size_bytes, tensor_bytes)) {
    return DataLossError("a {} payload of {} bytes for a tensor of {}", NameOf(encoding),
                         size_bytes, tensor_bytes);
  }
  std::vector<std::byte> payload(size_bytes);
  const size_t got = ZSTD_decompress(payload.data(), payload.size(), entry.data(), entry.size());
  if (ZSTD_isError(got) != 0) {
    return DataLossError("a damaged zstd frame: {}", ZSTD_getErrorName(got));
  }
  if (got != payload.size()) {
    return DataLossError("a zstd frame of {} bytes, it states {}", got, payload.size());
  }
  return payload;
}

Status ApplyPayload(Encoding encoding, ByteSpan payload, MutableByteSpan tensor) {
  switch (encoding) {
    case Encoding::kXor:
      if (payload.size() != tensor.size()) {
        return DataLossError("an xor of {} bytes for a tensor of {}", payload.size(),
                             tensor.size());
      }
      Xor(tensor, payload);
      return OkStatus();
    case Encoding::kOverwrite:
      DWS_RETURN_IF_ERROR(CheckSparse(kOverwrite, payload, tensor.size()));
      ForEachChange(kOverwrite, payload, [&](uint64_t at, std::byte value) { tensor[at] = value; });
      return OkStatus();
    case Encoding::kXorSparse:
      DWS_RETURN_IF_ERROR(CheckSparse(kXorSparse, payload, tensor.size()));
      ForEachChange(kXorSparse, payload,
                    [&](uint64_t at, std::byte value) { tensor[at] ^= value; });
      return OkStatus();
    case Encoding::kRuns:
      return ApplyRuns(payload, tensor);
  }
  return InternalError("an encoding that does not exist");
}

}  // namespace dws::slime
