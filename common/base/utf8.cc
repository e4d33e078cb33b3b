#include "common/base/utf8.h"

#include <algorithm>
#include <array>

namespace dws {

Utf8Character FirstUtf8Character(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {.code_point = lead, .size_bytes = 1};
  const size_t size = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < size) return {};
  char32_t code_point = lead & (0xFFU >> (size + 1));
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0U) != 0x80) return {};
    code_point = code_point << 6 | (byte(i) & 0x3FU);
  }
  // By size: a smaller code point fits into fewer bytes, so the form is too long.
  constexpr std::array<char32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
  if (code_point < kSmallest[size] || code_point > 0x10FFFF || is_surrogate) return {};
  return {.code_point = code_point, .size_bytes = size};
}

std::string_view Utf8Prefix(std::string_view text, size_t bytes_max) {
  size_t size = std::min(text.size(), bytes_max);
  const auto continues = [text](size_t i) {
    return (static_cast<unsigned char>(text[i]) & 0xC0U) == 0x80;
  };
  while (size > 0 && size < text.size() && continues(size)) --size;
  return text.substr(0, size);
}

}  // namespace dws
