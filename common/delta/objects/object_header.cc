#include "common/delta/objects/object_header.h"

#include <algorithm>
#include <array>

#include "common/base/check.h"
#include "common/delta/bits/checksum.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// Like PNG's: the high bit, both line ends and ^Z reveal damage by a text-mode transfer.
constexpr std::array<uint8_t, 8> kMagic = {0x89, 'D', 'W', 'S', '\r', '\n', 0x1A, '\n'};
constexpr uint32_t kFormatVersion = 1;
constexpr uint32_t kManifestCompressedFlag = 1;

// Offsets in the header; bytes 48 to 55 are zero.
constexpr size_t kVersionAt = 8;
constexpr size_t kFlagsAt = 12;
constexpr size_t kManifestBytesAt = 16;
constexpr size_t kManifestRawBytesAt = 24;
constexpr size_t kManifestChecksumAt = 32;
constexpr size_t kFramesBytesAt = 40;
constexpr size_t kReservedAt = 48;
constexpr size_t kHeaderChecksumAt = 56;

bool SizesArePossible(const ObjectHeader& header) {
  const bool sizes_agree = header.manifest_compressed
                               ? header.manifest_bytes < header.manifest_raw_bytes
                               : header.manifest_bytes == header.manifest_raw_bytes;
  return sizes_agree && header.manifest_raw_bytes <= limits::kManifestBytesMax &&
         header.frames_bytes <= limits::kObjectBytesMax;
}

std::string Hex(ByteSpan bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    text += fmt::format("{}{:02x}", text.empty() ? "" : " ", static_cast<unsigned>(byte));
  }
  return text;
}

// Adds one field if `bytes` has all of it. `describe` sets the field's value and problem from its
// bytes.
template <typename Describe>
void AddField(ByteSpan bytes, size_t offset, size_t size_bytes, std::string_view name,
              const Describe& describe, std::vector<FormatField>& fields) {
  if (offset + size_bytes > bytes.size()) return;
  FormatField field{.offset = offset, .size_bytes = size_bytes, .name = name};
  describe(bytes.data() + offset, field);
  fields.push_back(std::move(field));
}

void DescribeMagic(const std::byte* at, FormatField& field) {
  const ByteSpan found(at, kMagic.size());
  field.value = Hex(found);
  if (std::memcmp(at, kMagic.data(), kMagic.size()) != 0) {
    field.problem = "expected " + Hex(ObjectMagic());
  }
}

void DescribeVersion(const std::byte* at, FormatField& field) {
  const auto version = LoadLe<uint32_t>(at);
  field.value = fmt::format("{}", version);
  if (version != kFormatVersion) {
    field.problem = fmt::format("this build knows version {}", kFormatVersion);
  }
}

void DescribeFlags(const std::byte* at, FormatField& field) {
  const auto flags = LoadLe<uint32_t>(at);
  field.value =
      flags == kManifestCompressedFlag ? "1 (manifest compressed)" : fmt::format("{:#x}", flags);
  if (flags > kManifestCompressedFlag) field.problem = "expected 0 or 1";
}

void DescribeNumber(const std::byte* at, FormatField& field) {
  field.value = fmt::format("{}", LoadLe<uint64_t>(at));
}

}  // namespace

ByteSpan ObjectMagic() { return std::as_bytes(std::span(kMagic)); }

uint64_t ObjectHeader::total_bytes() const {
  return kObjectHeaderBytes + manifest_bytes + frames_bytes;
}

void StoreObjectHeader(const ObjectHeader& header, std::byte* to) {
  std::memcpy(to, kMagic.data(), kMagic.size());
  StoreLe(to + kVersionAt, kFormatVersion);
  StoreLe(to + kFlagsAt, header.manifest_compressed ? kManifestCompressedFlag : uint32_t{0});
  StoreLe(to + kManifestBytesAt, header.manifest_bytes);
  StoreLe(to + kManifestRawBytesAt, header.manifest_raw_bytes);
  StoreLe(to + kManifestChecksumAt, header.manifest_checksum);
  StoreLe(to + kFramesBytesAt, header.frames_bytes);
  StoreLe(to + kReservedAt, uint64_t{0});
  StoreLe(to + kHeaderChecksumAt, Checksum(ByteSpan(to, kHeaderChecksumAt)));
}

ObjectHeader LoadObjectHeader(ByteSpan bytes) {
  DWS_CHECK(bytes.size() >= kObjectHeaderBytes);
  return {
      .manifest_bytes = LoadLe<uint64_t>(bytes.data() + kManifestBytesAt),
      .frames_bytes = LoadLe<uint64_t>(bytes.data() + kFramesBytesAt),
      .manifest_raw_bytes = LoadLe<uint64_t>(bytes.data() + kManifestRawBytesAt),
      .manifest_checksum = LoadLe<uint64_t>(bytes.data() + kManifestChecksumAt),
      .manifest_compressed = LoadLe<uint32_t>(bytes.data() + kFlagsAt) == kManifestCompressedFlag};
}

Result<ObjectHeader> ParseObjectHeader(ByteSpan bytes) {
  if (bytes.size() < kObjectHeaderBytes) {
    return DataLossError("object: {} bytes, a header has {}", bytes.size(), kObjectHeaderBytes);
  }
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    return DataLossError("object: it does not begin with the eight bytes of a delta object");
  }
  // Every format version keeps magic, version and checksum in their places. So a damaged version
  // number is found here and not taken for an unknown version.
  const uint64_t expected = LoadLe<uint64_t>(bytes.data() + kHeaderChecksumAt);
  if (const uint64_t found = Checksum(bytes.first(kHeaderChecksumAt)); found != expected) {
    return DataLossError("object header: checksum {:016x}, expected {:016x}", found, expected);
  }
  if (const uint32_t version = LoadLe<uint32_t>(bytes.data() + kVersionAt);
      version != kFormatVersion) {
    return UnimplementedError("object: format version {}, this build knows {}", version,
                              kFormatVersion);
  }
  const uint32_t flags = LoadLe<uint32_t>(bytes.data() + kFlagsAt);
  if (flags > kManifestCompressedFlag || LoadLe<uint64_t>(bytes.data() + kReservedAt) != 0) {
    return DataLossError(
        "object header: flags {:x} or reserved bytes are not valid in format version 1", flags);
  }
  const ObjectHeader header = LoadObjectHeader(bytes);
  if (!SizesArePossible(header)) {
    return DataLossError(
        "object header: these sizes are not possible: a manifest of {} bytes ({} stored) and {} "
        "bytes of frames",
        header.manifest_raw_bytes, header.manifest_bytes, header.frames_bytes);
  }
  return header;
}

std::vector<FormatField> DescribeObjectHeader(ByteSpan bytes) {
  std::vector<FormatField> fields;
  AddField(bytes, 0, kMagic.size(), "magic", DescribeMagic, fields);
  AddField(bytes, kVersionAt, 4, "format version", DescribeVersion, fields);
  AddField(bytes, kFlagsAt, 4, "flags", DescribeFlags, fields);
  AddField(bytes, kManifestBytesAt, 8, "manifest bytes, stored", DescribeNumber, fields);
  AddField(
      bytes, kManifestRawBytesAt, 8, "manifest bytes, uncompressed",
      [bytes](const std::byte* at, FormatField& field) {
        DescribeNumber(at, field);
        if (bytes.size() < kObjectHeaderBytes) return;
        const ObjectHeader header = LoadObjectHeader(bytes);
        if (!SizesArePossible(header)) field.problem = "these sizes are not possible";
      },
      fields);
  AddField(
      bytes, kManifestChecksumAt, 8, "manifest checksum",
      [](const std::byte* at, FormatField& field) {
        field.value = fmt::format("{:016x}", LoadLe<uint64_t>(at));
      },
      fields);
  AddField(bytes, kFramesBytesAt, 8, "frames bytes", DescribeNumber, fields);
  AddField(
      bytes, kReservedAt, 8, "reserved",
      [](const std::byte* at, FormatField& field) {
        DescribeNumber(at, field);
        if (LoadLe<uint64_t>(at) != 0) field.problem = "expected 0";
      },
      fields);
  AddField(
      bytes, kHeaderChecksumAt, 8, "header checksum",
      [bytes](const std::byte* at, FormatField& field) {
        const auto stored = LoadLe<uint64_t>(at);
        field.value = fmt::format("{:016x}", stored);
        const uint64_t found = Checksum(bytes.first(kHeaderChecksumAt));
        if (found != stored) field.problem = fmt::format("the bytes have {:016x}", found);
      },
      fields);
  return fields;
}

}  // namespace dws
