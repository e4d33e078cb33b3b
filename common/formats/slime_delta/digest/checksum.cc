// Digests are compared as texts, because slime writes and reads them so.
#include "common/formats/slime_delta/digest/checksum.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <span>

namespace dws::slime {
namespace {

std::string Hex(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
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

Checksum::Checksum(ChecksumFormat format) {
  switch (format) {
    case ChecksumFormat::kXxh3:
      break;
    case ChecksumFormat::kBlake3:
      state_.emplace<Blake3>();
      break;
    case ChecksumFormat::kAdler32:
      state_.emplace<uint32_t>(1);
      break;
  }
}

void Checksum::Update(ByteSpan bytes) {
  if (bytes.empty()) return;  // for a null pointer zlib would begin again
  if (auto* const xxh3 = std::get_if<Xxh3>(&state_)) return xxh3->Update(bytes);
  if (auto* const blake3 = std::get_if<Blake3>(&state_)) return blake3->Update(bytes);
  auto& value = std::get<uint32_t>(state_);
  value = static_cast<uint32_t>(
      ::adler32_z(value, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

std::string Checksum::Text() const {
  if (const auto* const xxh3 = std::get_if<Xxh3>(&state_)) return Hex(xxh3->Digest());
  if (const auto* const blake3 = std::get_if<Blake3>(&state_)) return Hex(blake3->Digest());
  return fmt::format("{:08x}", std::get<uint32_t>(state_));
}

std::string ChecksumText(ChecksumFormat format, ByteSpan bytes) {
  Checksum checksum(format);
  checksum.Update(bytes);
  return checksum.Text();
}

bool IsChecksumText(ChecksumFormat format, std::string_view text) {
  return text.size() == TextSize(format) &&
         std::all_of(text.begin(), text.end(), [](char character) {
           return (character >= '0' && character <= '9') || (character >= 'a' && character <= 'f');
         });
}

}  // namespace dws::slime
