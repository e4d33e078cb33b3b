#include "common/delta/frame.h"

#include <algorithm>
#include <array>
#include <bit>

#include "common/base/check.h"
#include "common/delta/bit_stream.h"
#include "common/delta/checksum.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// The columns of the block index, in the order of their bytes.
enum Column : size_t { kSize, kNnz, kParameters, kMode };
constexpr size_t kColumns = 4;
using Row = std::array<uint32_t, kColumns>;
constexpr Row kWidthMax = {20, 17, 16, 8};
constexpr const char* kColumnNames[kColumns] = {"sizes", "counts", "parameters", "modes"};

constexpr uint64_t kPayloadAlignment = 8;
// From this many empty blocks on, a second frame costs less than their rows of the index.
constexpr size_t kEmptyRunMin = 32;

Row RowOf(const EncodedBlock& block) {
  return {static_cast<uint32_t>(block.payload.size()), block.nnz, block.parameters,
          static_cast<uint32_t>(block.mode)};
}

uint64_t AlignPayload(uint64_t bytes) {
  return CeilDiv(bytes, kPayloadAlignment) * kPayloadAlignment;
}

// What a frame's size follows from: the range of each column.
struct FrameShape {
  uint64_t blocks = 0;
  uint64_t payload_bytes = 0;
  Row low{};
  Row high{};

  void Add(const Row& row) {
    for (size_t c = 0; c < kColumns; ++c) {
      low[c] = blocks == 0 ? row[c] : std::min(low[c], row[c]);
      high[c] = blocks == 0 ? row[c] : std::max(high[c], row[c]);
    }
    payload_bytes += row[kSize];
    ++blocks;
  }
  uint32_t Width(size_t column) const {
    return static_cast<uint32_t>(std::bit_width(high[column] - low[column]));
  }
  uint64_t ColumnBytes(size_t column) const { return CeilDiv(blocks * Width(column), 8); }
  uint64_t SizeBytes() const {
    uint64_t index_bytes = kFrameHeaderBytes;
    for (size_t c = 0; c < kColumns; ++c) index_bytes += ColumnBytes(c);
    return AlignPayload(index_bytes) + payload_bytes;
  }
};

FrameShape ShapeOf(std::span<const EncodedBlock> blocks) {
  FrameShape shape;
  for (const EncodedBlock& block : blocks) shape.Add(RowOf(block));
  return shape;
}

// The fixed fields in front of the columns; FORMAT.md has their offsets.
struct FrameHeader {
  uint32_t block_count = 0;
  uint32_t payload_bytes = 0;
  Row base{};
  Row width{};
};

void StoreHeader(const FrameHeader& header, std::byte* to) {
  StoreLe(to, header.block_count);
  StoreLe(to + 4, header.payload_bytes);
  StoreLe(to + 8, header.base[kSize]);
  StoreLe(to + 12, header.base[kNnz]);
  StoreLe(to + 16, static_cast<uint16_t>(header.base[kParameters]));
  StoreLe(to + 18, static_cast<uint8_t>(header.base[kMode]));
  for (size_t c = 0; c < kColumns; ++c) StoreLe(to + 19 + c, static_cast<uint8_t>(header.width[c]));
  StoreLe(to + 23, uint8_t{0});
}

FrameHeader LoadHeader(const std::byte* from) {
  FrameHeader header{.block_count = LoadLe<uint32_t>(from),
                     .payload_bytes = LoadLe<uint32_t>(from + 4)};
  header.base = {LoadLe<uint32_t>(from + 8), LoadLe<uint32_t>(from + 12),
                 LoadLe<uint16_t>(from + 16), LoadLe<uint8_t>(from + 18)};
  for (size_t c = 0; c < kColumns; ++c) header.width[c] = LoadLe<uint8_t>(from + 19 + c);
  return header;
}

Status CheckHeader(const FrameHeader& header, ByteSpan frame, const FrameEntry& entry) {
  if (header.block_count != entry.block_count || header.block_count == 0 ||
      header.block_count > kFrameBlocksMax) {
    return DataLossError("frame: {} blocks, the manifest has {}, at most {} are possible",
                         header.block_count, entry.block_count, kFrameBlocksMax);
  }
  if (frame[23] != std::byte{0}) return DataLossError("frame: the header's last byte is not zero");
  uint64_t index_bytes = kFrameHeaderBytes;
  for (size_t c = 0; c < kColumns; ++c) {
    if (header.width[c] > kWidthMax[c]) {
      return DataLossError("frame: {} of {} bits, at most {} are possible", kColumnNames[c],
                           header.width[c], kWidthMax[c]);
    }
    index_bytes += CeilDiv(uint64_t{header.block_count} * header.width[c], 8);
  }
  const uint64_t payload_begin = AlignPayload(index_bytes);
  if (payload_begin + header.payload_bytes != frame.size()) {
    return DataLossError("frame: {} bytes, its header gives {}", frame.size(),
                         payload_begin + header.payload_bytes);
  }
  for (uint64_t at = index_bytes; at < payload_begin; ++at) {
    if (frame[at] != std::byte{0}) return DataLossError("frame: padding byte {} is not zero", at);
  }
  return OkStatus();
}

// One column of the index as it was before packing. Checks that it is packed as tightly as it can
// be.
Status ReadColumn(const FrameHeader& header, size_t column, ByteSpan packed,
                  std::vector<uint32_t>& values) {
  const uint32_t width = header.width[column];
  values.resize(header.block_count);
  ReadPlane(packed, 0, width, header.block_count, values.data());
  if (!EndsCleanly(packed, uint64_t{header.block_count} * width)) {
    return DataLossError("frame: the padding of the {} is not zero", kColumnNames[column]);
  }
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  if (*low != 0 || static_cast<uint32_t>(std::bit_width(*high)) != width) {
    return DataLossError("frame: {} from {} to {} are not packed to {} bits", kColumnNames[column],
                         *low, *high, width);
  }
  if (uint64_t{header.base[column]} + *high > LowBits(kWidthMax[column])) {
    return DataLossError("frame: {} up to {}, at most {} bits are possible", kColumnNames[column],
                         uint64_t{header.base[column]} + *high, kWidthMax[column]);
  }
  for (uint32_t& value : values) value += header.base[column];
  return OkStatus();
}

}  // namespace

std::vector<std::byte> BuildFrame(std::span<const EncodedBlock> blocks) {
  DWS_CHECK(!blocks.empty() && blocks.size() <= kFrameBlocksMax);
  const FrameShape shape = ShapeOf(blocks);
  FrameHeader header{.block_count = static_cast<uint32_t>(shape.blocks),
                     .payload_bytes = static_cast<uint32_t>(shape.payload_bytes),
                     .base = shape.low};
  for (size_t c = 0; c < kColumns; ++c) header.width[c] = shape.Width(c);

  // A column's last word is stored whole; payloads are written after, over what it spills.
  std::vector<std::byte> frame(shape.SizeBytes() + BitWriter::kSlackBytes);
  StoreHeader(header, frame.data());
  std::byte* at = frame.data() + kFrameHeaderBytes;
  for (size_t c = 0; c < kColumns; ++c) {
    BitWriter writer(at);
    for (const EncodedBlock& block : blocks)
      writer.Put(RowOf(block)[c] - shape.low[c], header.width[c]);
    at += shape.ColumnBytes(c);
    DWS_CHECK(writer.end() == at);
  }
  at = frame.data() + shape.SizeBytes() - shape.payload_bytes;
  for (const EncodedBlock& block : blocks)
    at = std::copy(block.payload.begin(), block.payload.end(), at);
  frame.resize(shape.SizeBytes());
  return frame;
}

uint64_t FrameSize(std::span<const EncodedBlock> blocks) { return ShapeOf(blocks).SizeBytes(); }

size_t BlocksOfNextFrame(std::span<const EncodedBlock> blocks) {
  FrameShape shape;
  size_t taken = 1;  // up to the last block that is not empty
  for (size_t i = 0; i < blocks.size() && i < kFrameBlocksMax; ++i) {
    shape.Add(RowOf(blocks[i]));
    if (i > 0 && shape.SizeBytes() > limits::kFrameBytesMax) break;
    if (blocks[i].mode != BlockMode::kEmpty) {
      taken = i + 1;
    } else if (i + 1 - taken >= kEmptyRunMin) {
      break;
    }
  }
  return taken;
}

uint64_t FrameChecksum(ByteSpan frame) { return Checksum(frame); }

Result<std::vector<EncodedBlockView>> ParseFrame(ByteSpan frame, const FrameEntry& entry) {
  if (frame.size() != entry.size_bytes || frame.size() < kFrameHeaderBytes ||
      frame.size() > limits::kFrameBytesMax) {
    return DataLossError("frame: {} bytes, expected {}, {} to {} are possible", frame.size(),
                         entry.size_bytes, kFrameHeaderBytes, limits::kFrameBytesMax);
  }
  if (const uint64_t checksum = FrameChecksum(frame); checksum != entry.checksum) {
    return DataLossError("frame: checksum {:016x}, expected {:016x}", checksum, entry.checksum);
  }
  const FrameHeader header = LoadHeader(frame.data());
  DWS_RETURN_IF_ERROR(CheckHeader(header, frame, entry));
  std::array<std::vector<uint32_t>, kColumns> columns;
  size_t column_begin = kFrameHeaderBytes;
  for (size_t c = 0; c < kColumns; ++c) {
    const size_t column_bytes = CeilDiv(uint64_t{header.block_count} * header.width[c], 8);
    DWS_RETURN_IF_ERROR(
        ReadColumn(header, c, frame.subspan(column_begin, column_bytes), columns[c]));
    column_begin += column_bytes;
  }
  ByteSpan payloads = frame.last(header.payload_bytes);
  std::vector<EncodedBlockView> blocks(header.block_count);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const uint32_t size_bytes = columns[kSize][i];
    if (size_bytes > payloads.size()) {
      return DataLossError("frame: the payload of block {} has {} bytes, {} are left", i,
                           size_bytes, payloads.size());
    }
    blocks[i] = {.mode = static_cast<BlockMode>(columns[kMode][i]),
                 .nnz = columns[kNnz][i],
                 .parameters = static_cast<uint16_t>(columns[kParameters][i]),
                 .payload = payloads.first(size_bytes)};
    payloads = payloads.subspan(size_bytes);
  }
  if (!payloads.empty()) {
    return DataLossError("frame: {} bytes after the last payload", payloads.size());
  }
  return blocks;
}

}  // namespace dws
