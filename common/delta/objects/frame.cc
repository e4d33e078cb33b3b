#include "common/delta/objects/frame.h"

#include <algorithm>
#include <array>
#include <bit>

#include "common/base/check.h"
#include "common/delta/bits/bit_stream.h"
#include "common/delta/bits/checksum.h"
#include "common/delta/objects/frame_header.h"
#include "common/model/limits.h"

namespace dws {
namespace {

static_assert(kFrameSlackBytes == BitWriter::kSlackBytes);  // overwritten by a column's last word

// For this many empty blocks or more, a second frame costs less than their rows of the index.
constexpr size_t kEmptyRunMin = 32;

FrameRow RowOf(const EncodedBlock& block) {
  return {static_cast<uint32_t>(block.payload.size()), block.nnz, block.parameters,
          static_cast<uint32_t>(block.mode)};
}

// The range of each column, which determines the size of a frame.
struct FrameShape {
  uint64_t blocks = 0;
  uint64_t payload_bytes = 0;
  FrameRow low{};
  FrameRow high{};

  void Add(const FrameRow& row) {
    for (size_t c = 0; c < kFrameColumns; ++c) {
      low[c] = blocks == 0 ? row[c] : std::min(low[c], row[c]);
      high[c] = blocks == 0 ? row[c] : std::max(high[c], row[c]);
    }
    payload_bytes += row[kFrameSize];
    ++blocks;
  }
  uint32_t Width(size_t column) const {
    return static_cast<uint32_t>(std::bit_width(high[column] - low[column]));
  }
  uint64_t ColumnBytes(size_t column) const { return CeilDiv(blocks * Width(column), 8); }
  uint64_t SizeBytes() const {
    uint64_t index_bytes = kFrameHeaderBytes;
    for (size_t c = 0; c < kFrameColumns; ++c) index_bytes += ColumnBytes(c);
    return AlignFramePayload(index_bytes) + payload_bytes;
  }
};

FrameShape ShapeOf(std::span<const FrameRow> rows) {
  FrameShape shape;
  for (const FrameRow& row : rows) shape.Add(row);
  return shape;
}

std::vector<FrameRow> RowsOf(std::span<const EncodedBlock> blocks) {
  std::vector<FrameRow> rows;
  rows.reserve(blocks.size());
  for (const EncodedBlock& block : blocks) rows.push_back(RowOf(block));
  return rows;
}

// Reads one column of the index. DATA_LOSS: it is not packed as tightly as possible, or a value is
// too large.
Status ReadColumn(const FrameHeader& header, size_t column, ByteSpan packed,
                  std::vector<uint32_t>& values) {
  const uint32_t width = header.width[column];
  values.resize(header.block_count);
  ReadPlane(packed, 0, width, header.block_count, values.data());
  if (!EndsCleanly(packed, uint64_t{header.block_count} * width)) {
    return DataLossError("frame: the padding of the {} is not zero", kFrameColumnNames[column]);
  }
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  if (*low != 0 || static_cast<uint32_t>(std::bit_width(*high)) != width) {
    return DataLossError("frame: {} from {} to {} are not packed to {} bits",
                         kFrameColumnNames[column], *low, *high, width);
  }
  if (uint64_t{header.base[column]} + *high > LowBits(kFrameWidthMax[column])) {
    return DataLossError("frame: {} up to {}, at most {} bits are possible",
                         kFrameColumnNames[column], uint64_t{header.base[column]} + *high,
                         kFrameWidthMax[column]);
  }
  for (uint32_t& value : values) value += header.base[column];
  return OkStatus();
}

}  // namespace

MutableByteSpan WriteFrameIndex(std::span<const FrameRow> rows, std::byte* frame) {
  DWS_CHECK(!rows.empty() && rows.size() <= kFrameBlocksMax);
  const FrameShape shape = ShapeOf(rows);
  FrameHeader header{.block_count = static_cast<uint32_t>(shape.blocks),
                     .payload_bytes = static_cast<uint32_t>(shape.payload_bytes),
                     .base = shape.low};
  for (size_t c = 0; c < kFrameColumns; ++c) header.width[c] = shape.Width(c);
  StoreFrameHeader(header, frame);
  std::byte* at = frame + kFrameHeaderBytes;
  for (size_t c = 0; c < kFrameColumns; ++c) {
    BitWriter writer(at);
    for (const FrameRow& row : rows) writer.Put(row[c] - shape.low[c], header.width[c]);
    at += shape.ColumnBytes(c);
    DWS_CHECK(writer.end() == at);
  }
  std::byte* const payloads = frame + shape.SizeBytes() - shape.payload_bytes;
  DWS_CHECK(at <= payloads);
  std::fill(at, payloads, std::byte{0});
  return {payloads, shape.payload_bytes};
}

std::vector<std::byte> BuildFrame(std::span<const EncodedBlock> blocks) {
  const std::vector<FrameRow> rows = RowsOf(blocks);
  const uint64_t size_bytes = FrameSize(rows);
  std::vector<std::byte> frame(size_bytes + kFrameSlackBytes);
  std::byte* at = WriteFrameIndex(rows, frame.data()).data();
  for (const EncodedBlock& block : blocks)
    at = std::copy(block.payload.begin(), block.payload.end(), at);
  DWS_CHECK(at == frame.data() + size_bytes);
  frame.resize(size_bytes);
  return frame;
}

uint64_t FrameSize(std::span<const FrameRow> rows) { return ShapeOf(rows).SizeBytes(); }

uint64_t FrameSize(std::span<const EncodedBlock> blocks) { return FrameSize(RowsOf(blocks)); }

size_t BlocksOfNextFrame(std::span<const EncodedBlock> blocks) {
  DWS_CHECK(!blocks.empty());
  FrameShape shape;
  size_t taken = 1;  // up to and including the last block that is not empty
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
  return ParseFrameBlocks(frame, entry.block_count);
}

Result<std::vector<EncodedBlockView>> ParseFrameBlocks(ByteSpan frame, uint32_t block_count) {
  if (frame.size() < kFrameHeaderBytes) {
    return DataLossError("frame: {} bytes, its header has {}", frame.size(), kFrameHeaderBytes);
  }
  const FrameHeader header = LoadFrameHeader(frame.data());
  DWS_RETURN_IF_ERROR(CheckFrameHeader(header, frame, block_count));
  std::array<std::vector<uint32_t>, kFrameColumns> columns;
  size_t column_begin = kFrameHeaderBytes;
  for (size_t c = 0; c < kFrameColumns; ++c) {
    const size_t column_bytes = CeilDiv(uint64_t{header.block_count} * header.width[c], 8);
    DWS_RETURN_IF_ERROR(
        ReadColumn(header, c, frame.subspan(column_begin, column_bytes), columns[c]));
    column_begin += column_bytes;
  }
  ByteSpan payloads = frame.last(header.payload_bytes);
  std::vector<EncodedBlockView> blocks(header.block_count);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const uint32_t size_bytes = columns[kFrameSize][i];
    if (size_bytes > payloads.size()) {
      return DataLossError("frame: the payload of block {} has {} bytes, {} are left", i,
                           size_bytes, payloads.size());
    }
    blocks[i] = {.mode = static_cast<BlockMode>(columns[kFrameMode][i]),
                 .nnz = columns[kFrameNnz][i],
                 .parameters = static_cast<uint16_t>(columns[kFrameParameters][i]),
                 .payload = payloads.first(size_bytes)};
    payloads = payloads.subspan(size_bytes);
  }
  if (!payloads.empty()) {
    return DataLossError("frame: {} bytes after the last payload", payloads.size());
  }
  return blocks;
}

}  // namespace dws
