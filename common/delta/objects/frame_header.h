// The fixed fields before a frame's block index, and the places of a frame's parts (FORMAT.md,
// "Frame"). frame.h builds on it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/delta/bits/format_field.h"

namespace dws {

inline constexpr size_t kFrameHeaderBytes = 24;
inline constexpr uint32_t kFrameBlocksMax = 65'536;

// The columns of the block index, in the order of their bytes.
enum FrameColumn : size_t { kFrameSize, kFrameNnz, kFrameParameters, kFrameMode };
inline constexpr size_t kFrameColumns = 4;
using FrameRow = std::array<uint32_t, kFrameColumns>;
inline constexpr FrameRow kFrameWidthMax = {20, 17, 16, 8};
inline constexpr std::array<const char*, kFrameColumns> kFrameColumnNames = {"sizes", "counts",
                                                                             "parameters", "modes"};

// The fixed part in front of a frame's columns.
struct FrameHeader {
  uint32_t block_count = 0;
  uint32_t payload_bytes = 0;
  FrameRow base{};
  FrameRow width{};

  uint64_t ColumnBytes(size_t column) const {
    return CeilDiv(uint64_t{block_count} * width[column], 8);
  }
};

void StoreFrameHeader(const FrameHeader& header, std::byte* to);
// Reads kFrameHeaderBytes bytes without checking them.
FrameHeader LoadFrameHeader(const std::byte* from);

// The offset of the payloads after `bytes` of header and index.
uint64_t AlignFramePayload(uint64_t bytes);

// DATA_LOSS: the number of blocks is not `block_count`, a width is not possible, the size is not
// that of `frame`, or padding is not zero. `frame` has at least kFrameHeaderBytes.
Status CheckFrameHeader(const FrameHeader& header, ByteSpan frame, uint32_t block_count);

// Describes the fields of the header, and the columns, padding and payloads after it, as far as
// `frame` goes.
std::vector<FormatField> DescribeFrameHeader(ByteSpan frame);

}  // namespace dws
