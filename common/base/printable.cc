#include "common/base/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "common/base/utf8.h"

namespace dws {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};

// Controls, the soft hyphen, marks of direction, invisible joiners, separators of lines and
// paragraphs, the byte order mark, annotations, tags.
constexpr std::array<Range, 10> kUnprintable = {{{0, 0x1F},
                                                 {0x7F, 0x9F},
                                                 {0xAD, 0xAD},
                                                 {0x61C, 0x61C},
                                                 {0x200B, 0x200F},
                                                 {0x2028, 0x202E},
                                                 {0x2060, 0x206F},
                                                 {0xFEFF, 0xFEFF},
                                                 {0xFFF9, 0xFFFB},
                                                 {0xE0000, 0xE0FFF}}};

}  // namespace

bool IsUnprintable(char32_t code_point) {
  return std::any_of(kUnprintable.begin(), kUnprintable.end(), [code_point](const Range& range) {
    return code_point >= range.first && code_point <= range.last;
  });
}

std::string EscapeUnprintable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Character next = FirstUtf8Character(text);
    const size_t size_bytes = std::max<size_t>(next.size_bytes, 1);
    if (next.size_bytes == 0) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
    } else if (IsUnprintable(next.code_point)) {
      const auto value = static_cast<uint32_t>(next.code_point);
      out += value <= 0xFF     ? fmt::format("\\x{:02x}", value)
             : value <= 0xFFFF ? fmt::format("\\u{:04x}", value)
                               : fmt::format("\\U{:08x}", value);
    } else {
      out += text.substr(0, size_bytes);
    }
    text.remove_prefix(size_bytes);
  }
  return out;
}

std::string UnprintableIn(std::string_view name) {
  const std::string escaped = EscapeUnprintable(name);
  if (escaped == name) return "";
  return fmt::format(
      "'{}', shown here with escapes, has characters that cannot be printed: expected letters, "
      "digits and other characters that can",
      escaped);
}

}  // namespace dws
