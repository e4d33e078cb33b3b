// Sizes are checked in 64 bits before anything is written: a count or position that wraps around
// in 32 bits would be read as another change.
#include "common/formats/slime_delta/payload.h"

#include <zstd.h>

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/formats/slime_delta/change_list.h"
#include "common/formats/slime_delta/entry_compressor.h"
#include "common/formats/slime_delta/entry_stream.h"

namespace dws::slime {
namespace {

constexpr uint64_t kOverwriteTensorBytesMax = uint64_t{1} << 32;

struct Sparse {
  size_t number_bytes;
  uint64_t OfCount(uint64_t count) const { return number_bytes + count * (number_bytes + 1); }
};
constexpr Sparse kOverwrite{.number_bytes = 4};
constexpr Sparse kXorSparse{.number_bytes = 8};

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

Result<std::vector<std::byte>> EncodePayload(Encoding encoding, ByteSpan before, ByteSpan after) {
  if (before.size() != after.size()) {
    return InvalidArgumentError("{} bytes before and {} after: a delta keeps a tensor's size",
                                before.size(), after.size());
  }
  DWS_RETURN_IF_ERROR(CheckEncodable(encoding, after.size()));
  if (encoding == Encoding::kXor) {
    std::vector<std::byte> payload(after.size());
    Xor(before, after, payload);
    return payload;
  }
  if (encoding == Encoding::kOverwrite) {
    OverwriteWriter writer;
    for (const ByteRun& run : ChangedRuns(before, after, 0)) {
      writer.Add(run.offset, after.subspan(run.offset, run.size_bytes));
    }
    return writer.Take();
  }
  return EncodeRuns(after, ChangedRuns(before, after, kRunJoinBytes));
}

std::vector<std::byte> CompressEntry(ByteSpan payload, int level) {
  EntryCompressor entry(payload.size(), level);
  entry.Add(payload);
  return entry.Finish();
}

uint64_t PayloadBytesMax(Encoding encoding, uint64_t tensor_bytes) {
  switch (encoding) {
    case Encoding::kXor:
      return tensor_bytes;
    case Encoding::kOverwrite:
      return kOverwrite.OfCount(tensor_bytes);
    case Encoding::kXorSparse:
      return kXorSparse.OfCount(tensor_bytes);
    case Encoding::kRuns:
      return RunsBytesMax(tensor_bytes);
  }
  return 0;
}

uint64_t EntryBytesMax(Encoding encoding, uint64_t tensor_bytes) {
  return ZSTD_compressBound(PayloadBytesMax(encoding, tensor_bytes)) + kFrameStartBytes;
}

Result<uint64_t> PayloadBytes(Encoding encoding, ByteSpan start, uint64_t tensor_bytes) {
  if (encoding == Encoding::kOverwrite && tensor_bytes > kOverwriteTensorBytesMax) {
    return InvalidArgumentError("overwrite counts in 32 bits, and its tensor has {} bytes",
                                tensor_bytes);
  }
  const unsigned long long size_bytes = ZSTD_getFrameContentSize(start.data(), start.size());
  if (size_bytes == ZSTD_CONTENTSIZE_ERROR || size_bytes == ZSTD_CONTENTSIZE_UNKNOWN) {
    return DataLossError("expected one zstd frame that states its content size");
  }
  const uint64_t size_bytes_max = PayloadBytesMax(encoding, tensor_bytes);
  const bool fits =
      encoding == Encoding::kXor ? size_bytes == tensor_bytes : size_bytes <= size_bytes_max;
  if (fits) return uint64_t{size_bytes};
  return DataLossError("a {} payload of {} bytes for a tensor of {}", NameOf(encoding), size_bytes,
                       tensor_bytes);
}

Result<std::vector<std::byte>> DecodeEntry(Encoding encoding, ByteSpan entry,
                                           uint64_t tensor_bytes) {
  DWS_ASSIGN_OR_RETURN(EntryStream stream,
                       EntryStream::Open(encoding, MemorySource(entry), tensor_bytes));
  std::vector<std::byte> payload(stream.payload_bytes());
  DWS_RETURN_IF_ERROR(stream.Read(payload));
  DWS_RETURN_IF_ERROR(stream.Finish());
  return payload;
}

Status ApplyPayload(Encoding encoding, ByteSpan payload, MutableByteSpan tensor) {
  if (encoding == Encoding::kXor && payload.size() != tensor.size()) {
    return DataLossError("an xor of {} bytes for a tensor of {}", payload.size(), tensor.size());
  }
  if (encoding == Encoding::kXor) {
    Xor(tensor, payload, tensor);
    return OkStatus();
  }
  DWS_ASSIGN_OR_RETURN(ChangeList changes,
                       ChangeList::Make(encoding, {payload.begin(), payload.end()}, tensor.size()));
  changes.Apply(tensor, nullptr);
  return OkStatus();
}

}  // namespace dws::slime
