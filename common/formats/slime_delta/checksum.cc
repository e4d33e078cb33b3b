#include "common/formats/slime_delta/checksum.h"

#include <fmt/format.h>
#include <xxhash.h>
#include <zlib.h>

#include <algorithm>
#include <span>

#include "common/formats/slime_delta/blake3.h"

namespace dws::slime {
namespace {

std::string Hex(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::string Xxh3(ByteSpan bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  return Hex(canonical.digest);
}

std::string Adler32(ByteSpan bytes) {
  // Adler-32 of no bytes is the start value. It is written here because, for a null pointer, zlib
  // ignores the start value that it is given.
  const uLong value =
      bytes.empty() ? 1
                    : ::adler32_z(1, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  return fmt::format("{:08x}", value);
}

size_t TextSize(ChecksumFormat format) {
  switch (format) {
    case ChecksumFormat::kXxh3:
      return 32;
    case ChecksumFormat::kBlake3:
      return 64;
    case ChecksumFormat::kAdler32:
      return 8;
  }
  return 0;
}

}  // namespace

std::optional<ChecksumFormat> ChecksumFormatNamed(std::string_view name) {
  for (const ChecksumFormat format :
       {ChecksumFormat::kXxh3, ChecksumFormat::kBlake3, ChecksumFormat::kAdler32}) {
    if (NameOf(format) == name) return format;
  }
  return std::nullopt;
}

std::string_view NameOf(ChecksumFormat format) {
  switch (format) {
    case ChecksumFormat::kXxh3:
      return "xxh3-128";
    case ChecksumFormat::kBlake3:
      return "blake3";
    case ChecksumFormat::kAdler32:
      return "adler32";
  }
  return "";
}

std::string ChecksumText(ChecksumFormat format, ByteSpan bytes) {
  switch (format) {
    case ChecksumFormat::kXxh3:
      return Xxh3(bytes);
    case ChecksumFormat::kBlake3:
      return Hex(Blake3(bytes));
    case ChecksumFormat::kAdler32:
      return Adler32(bytes);
  }
  return "";
}

bool IsChecksumText(ChecksumFormat format, std::string_view text) {
  return text.size() == TextSize(format) &&
         std::all_of(text.begin(), text.end(), [](char character) {
           return (character >= '0' && character <= '9') || (character >= 'a' && character <= 'f');
         });
}

}  // namespace dws::slime
