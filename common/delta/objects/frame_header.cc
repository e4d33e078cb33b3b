#include "common/delta/objects/frame_header.h"

namespace dws {

uint64_t AlignFramePayload(uint64_t bytes) {
  constexpr uint64_t kPayloadAlignment = 8;
  return CeilDiv(bytes, kPayloadAlignment) * kPayloadAlignment;
}

// The offsets are those of FORMAT.md, "Frame".
void StoreFrameHeader(const FrameHeader& header, std::byte* to) {
  StoreLe(to, header.block_count);
  StoreLe(to + 4, header.payload_bytes);
  StoreLe(to + 8, header.base[kFrameSize]);
  StoreLe(to + 12, header.base[kFrameNnz]);
  StoreLe(to + 16, static_cast<uint16_t>(header.base[kFrameParameters]));
  StoreLe(to + 18, static_cast<uint8_t>(header.base[kFrameMode]));
  for (size_t c = 0; c < kFrameColumns; ++c)
    StoreLe(to + 19 + c, static_cast<uint8_t>(header.width[c]));
  StoreLe(to + 23, uint8_t{0});
}

FrameHeader LoadFrameHeader(const std::byte* from) {
  FrameHeader header{.block_count = LoadLe<uint32_t>(from),
                     .payload_bytes = LoadLe<uint32_t>(from + 4)};
  header.base = {LoadLe<uint32_t>(from + 8), LoadLe<uint32_t>(from + 12),
                 LoadLe<uint16_t>(from + 16), LoadLe<uint8_t>(from + 18)};
  for (size_t c = 0; c < kFrameColumns; ++c) header.width[c] = LoadLe<uint8_t>(from + 19 + c);
  return header;
}

Status CheckFrameHeader(const FrameHeader& header, ByteSpan frame, uint32_t block_count) {
  if (header.block_count != block_count || header.block_count == 0 ||
      header.block_count > kFrameBlocksMax) {
    return DataLossError("frame: {} blocks, the manifest has {}, at most {} are possible",
                         header.block_count, block_count, kFrameBlocksMax);
  }
  if (frame[23] != std::byte{0}) return DataLossError("frame: the header's last byte is not zero");
  uint64_t index_bytes = kFrameHeaderBytes;
  for (size_t c = 0; c < kFrameColumns; ++c) {
    if (header.width[c] > kFrameWidthMax[c]) {
      return DataLossError("frame: {} of {} bits, at most {} are possible", kFrameColumnNames[c],
                           header.width[c], kFrameWidthMax[c]);
    }
    index_bytes += CeilDiv(uint64_t{header.block_count} * header.width[c], 8);
  }
  const uint64_t payload_begin = AlignFramePayload(index_bytes);
  if (payload_begin + header.payload_bytes != frame.size()) {
    return DataLossError("frame: {} bytes, its header gives {}", frame.size(),
                         payload_begin + header.payload_bytes);
  }
  for (uint64_t at = index_bytes; at < payload_begin; ++at) {
    if (frame[at] != std::byte{0}) return DataLossError("frame: padding byte {} is not zero", at);
  }
  return OkStatus();
}

std::vector<FormatField> DescribeFrameHeader(ByteSpan frame) {
  if (frame.size() < kFrameHeaderBytes) return {};
  const FrameHeader header = LoadFrameHeader(frame.data());
  std::vector<FormatField> fields;
  const auto add = [&fields](uint64_t offset, uint64_t size_bytes, std::string_view name,
                             std::string value, std::string problem = "") {
    fields.push_back({.offset = offset,
                      .size_bytes = size_bytes,
                      .name = name,
                      .value = std::move(value),
                      .problem = std::move(problem)});
  };
  const auto number = [](uint32_t value) { return fmt::format("{}", value); };
  add(0, 4, "blocks", number(header.block_count));
  add(4, 4, "bytes of all payloads", number(header.payload_bytes));
  add(8, 4, "base of the sizes", number(header.base[kFrameSize]));
  add(12, 4, "base of the counts", number(header.base[kFrameNnz]));
  add(16, 2, "base of the parameters", fmt::format("{:#x}", header.base[kFrameParameters]));
  add(18, 1, "base of the modes", number(header.base[kFrameMode]));
  constexpr std::array<std::string_view, kFrameColumns> kWidths = {
      "width of the sizes", "width of the counts", "width of the parameters", "width of the modes"};
  for (size_t c = 0; c < kFrameColumns; ++c) {
    add(19 + c, 1, kWidths[c], fmt::format("{} bits", header.width[c]),
        header.width[c] > kFrameWidthMax[c] ? fmt::format("at most {} bits", kFrameWidthMax[c])
                                            : "");
  }
  const auto last = static_cast<uint32_t>(frame[23]);
  add(23, 1, "reserved", number(last), last == 0 ? "" : "expected 0");
  constexpr std::array<std::string_view, kFrameColumns> kColumns = {
      "column of sizes", "column of counts", "column of parameters", "column of modes"};
  uint64_t at = kFrameHeaderBytes;
  for (size_t c = 0; c < kFrameColumns; ++c) {
    const uint64_t bytes = header.ColumnBytes(c);
    if (bytes > frame.size() - at) return fields;
    if (bytes > 0) add(at, bytes, kColumns[c], fmt::format("{} blocks", header.block_count));
    at += bytes;
  }
  const uint64_t payloads = AlignFramePayload(at);
  if (payloads > frame.size()) return fields;
  if (payloads > at) add(at, payloads - at, "padding", "");
  add(payloads, frame.size() - payloads, "payloads",
      fmt::format("{} bytes", frame.size() - payloads));
  return fields;
}

}  // namespace dws
