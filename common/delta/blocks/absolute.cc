#include "common/delta/blocks/absolute.h"

#include "common/base/check.h"
#include "common/delta/bits/compression.h"

namespace dws {
namespace {

// Returns the same bytes in another order: byte j of element i goes to j * elements + i. Similar
// bytes side by side compress better.
std::vector<std::byte> ToBytePlanes(ByteSpan bytes, uint32_t element_bytes) {
  DWS_CHECK(bytes.size() % element_bytes == 0);
  std::vector<std::byte> planes(bytes.size());
  const size_t elements = bytes.size() / element_bytes;
  for (uint32_t j = 0; j < element_bytes; ++j) {
    std::byte* plane = planes.data() + j * elements;
    for (size_t i = 0; i < elements; ++i) plane[i] = bytes[i * element_bytes + j];
  }
  return planes;
}

void FromBytePlanes(ByteSpan planes, uint32_t element_bytes, MutableByteSpan bytes) {
  DWS_CHECK(planes.size() == bytes.size() && bytes.size() % element_bytes == 0);
  const size_t elements = planes.size() / element_bytes;
  for (uint32_t j = 0; j < element_bytes; ++j) {
    const std::byte* plane = planes.data() + j * elements;
    for (size_t i = 0; i < elements; ++i) bytes[i * element_bytes + j] = plane[i];
  }
}

Status CheckParametersZero(const EncodedBlockView& block) {
  if (block.parameters == 0) return OkStatus();
  return DataLossError("{}: parameters {:x}, expected 0", ToString(block.mode), block.parameters);
}

Status CheckAllElements(uint32_t element_count, const EncodedBlockView& block) {
  if (block.nnz == element_count) return CheckParametersZero(block);
  return DataLossError("{}: a count of {}, expected all {} elements", ToString(block.mode),
                       block.nnz, element_count);
}

}  // namespace

EncodedBlock WriteRaw(DType dtype, const BlockChanges& changes, ByteSpan after) {
  const uint32_t element_bytes = ElementBytes(dtype);
  DWS_CHECK(changes.positions.empty() ||
            (size_t{changes.positions.back()} + 1) * element_bytes <= after.size());
  EncodedBlock block{.mode = BlockMode::kRaw,
                     .nnz = static_cast<uint32_t>(changes.size()),
                     .parameters = 0,
                     .payload = std::vector<std::byte>(RawBytes(dtype, changes.size()))};
  std::byte* at = block.payload.data();
  for (const uint16_t position : changes.positions) {
    StoreLe(at, position);
    at += sizeof(position);
  }
  for (const uint16_t position : changes.positions) {
    std::memcpy(at, after.data() + size_t{position} * element_bytes, element_bytes);
    at += element_bytes;
  }
  DWS_CHECK(at == block.payload.data() + block.payload.size());
  return block;
}

EncodedBlock WriteDenseRaw(DType dtype, ByteSpan after) {
  return {.mode = BlockMode::kDenseRaw,
          .nnz = static_cast<uint32_t>(after.size() / ElementBytes(dtype)),
          .parameters = 0,
          .payload = std::vector<std::byte>(after.begin(), after.end())};
}

EncodedBlock WriteDenseZstd(DType dtype, ByteSpan after) {
  return {.mode = BlockMode::kDenseZstd,
          .nnz = static_cast<uint32_t>(after.size() / ElementBytes(dtype)),
          .parameters = 0,
          .payload = Compress(ToBytePlanes(after, ElementBytes(dtype)))};
}

Status ReadRaw(DType dtype, uint32_t element_count, const EncodedBlockView& block,
               DecodedBlock& decoded) {
  DWS_RETURN_IF_ERROR(CheckParametersZero(block));
  if (block.payload.size() != RawBytes(dtype, block.nnz)) {
    return DataLossError("raw: {} bytes for {} changes, expected {}", block.payload.size(),
                         block.nnz, RawBytes(dtype, block.nnz));
  }
  const uint32_t element_bytes = ElementBytes(dtype);
  decoded.kind = DecodedBlock::Kind::kValues;
  decoded.positions.resize(block.nnz);
  decoded.values.assign(block.nnz, 0);
  std::memcpy(decoded.positions.data(), block.payload.data(), size_t{block.nnz} * 2);
  int32_t last = -1;
  for (const uint16_t position : decoded.positions) {
    if (position <= last || position >= element_count) {
      return DataLossError("raw: position {} after {} in {} elements", position, last,
                           element_count);
    }
    last = position;
  }
  const std::byte* at = block.payload.data() + size_t{block.nnz} * 2;
  for (uint64_t& value : decoded.values) {
    std::memcpy(&value, at, element_bytes);
    at += element_bytes;
  }
  DWS_CHECK(at == block.payload.data() + block.payload.size());
  return OkStatus();
}

Status ReadDenseRaw(DType dtype, uint32_t element_count, const EncodedBlockView& block,
                    DecodedBlock& decoded) {
  DWS_RETURN_IF_ERROR(CheckAllElements(element_count, block));
  if (block.payload.size() != uint64_t{element_count} * ElementBytes(dtype)) {
    return DataLossError("dense-raw: {} bytes, expected {} elements of {}", block.payload.size(),
                         element_count, ElementBytes(dtype));
  }
  decoded.kind = DecodedBlock::Kind::kDense;
  decoded.dense.assign(block.payload.begin(), block.payload.end());
  return OkStatus();
}

Status ReadDenseZstd(DType dtype, uint32_t element_count, const EncodedBlockView& block,
                     DecodedBlock& decoded) {
  DWS_RETURN_IF_ERROR(CheckAllElements(element_count, block));
  const size_t size_bytes = size_t{element_count} * ElementBytes(dtype);
  std::vector<std::byte> planes(size_bytes);
  if (Status status = Decompress(block.payload, planes); !status.ok()) {
    return Annotate(status, "dense-zstd");
  }
  decoded.kind = DecodedBlock::Kind::kDense;
  decoded.dense.resize(size_bytes);
  FromBytePlanes(planes, ElementBytes(dtype), decoded.dense);
  return OkStatus();
}

}  // namespace dws
