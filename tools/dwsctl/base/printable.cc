#include "tools/dwsctl/base/printable.h"

#include <algorithm>
#include <array>

#include "common/base/check.h"
#include "common/base/printable.h"
#include "common/base/utf8.h"

namespace dws::dwsctl {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};

constexpr std::array<Range, 8> kCombining = {{{0x300, 0x36F},
                                              {0x483, 0x489},
                                              {0x591, 0x5BD},
                                              {0x64B, 0x65F},
                                              {0x1AB0, 0x1AFF},
                                              {0x20D0, 0x20FF},
                                              {0xFE00, 0xFE0F},
                                              {0xFE20, 0xFE2F}}};
// Unicode's East Asian Width W and F, rounded to whole blocks.
constexpr std::array<Range, 11> kWide = {{{0x1100, 0x115F},
                                          {0x2E80, 0x303E},
                                          {0x3041, 0x4DBF},
                                          {0x4E00, 0xA4CF},
                                          {0xAC00, 0xD7A3},
                                          {0xF900, 0xFAFF},
                                          {0xFE30, 0xFE6F},
                                          {0xFF00, 0xFF60},
                                          {0xFFE0, 0xFFE6},
                                          {0x1F300, 0x1FAFF},
                                          {0x20000, 0x3FFFD}}};

template <size_t kCount>
bool IsIn(const std::array<Range, kCount>& ranges, char32_t c) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [c](const Range& range) { return c >= range.first && c <= range.last; });
}

size_t Columns(char32_t c) {
  if (IsIn(kCombining, c)) return 0;
  return IsIn(kWide, c) ? 2 : 1;
}

// The bytes of as many whole characters as fit into `columns`. Combining marks stay with their
// character.
size_t BytesThatFit(std::string_view clean, size_t columns) {
  size_t used = 0;
  size_t bytes = 0;
  while (bytes < clean.size()) {
    const Utf8Character next = FirstUtf8Character(clean.substr(bytes));
    used += Columns(next.code_point);
    if (used > columns) break;
    bytes += std::max<size_t>(next.size_bytes, 1);
  }
  return bytes;
}

}  // namespace

std::string Clean(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const Utf8Character next = FirstUtf8Character(text);
    const bool unwanted = next.size_bytes == 0 || IsUnprintable(next.code_point);
    const size_t bytes = std::max<size_t>(next.size_bytes, 1);
    if (unwanted) {
      clean += '?';
    } else {
      clean += text.substr(0, bytes);
    }
    text.remove_prefix(bytes);
  }
  return clean;
}

size_t TextWidth(std::string_view clean) {
  size_t columns = 0;
  while (!clean.empty()) {
    const Utf8Character next = FirstUtf8Character(clean);
    columns += Columns(next.code_point);
    clean.remove_prefix(std::max<size_t>(next.size_bytes, 1));
  }
  return columns;
}

std::string Printable(std::string_view text, size_t columns_max) {
  DWS_CHECK(columns_max >= 4);
  std::string clean = Clean(text);
  if (TextWidth(clean) <= columns_max) return clean;
  clean.resize(BytesThatFit(clean, columns_max - 3));
  return clean + "...";
}

std::string PrintableEnd(std::string_view text, size_t columns_max) {
  DWS_CHECK(columns_max >= 4);
  const std::string clean = Clean(text);
  if (TextWidth(clean) <= columns_max) return clean;
  std::string_view rest = clean;
  while (TextWidth(rest) > columns_max - 3) {
    rest.remove_prefix(std::max<size_t>(FirstUtf8Character(rest).size_bytes, 1));
  }
  return "..." + std::string(rest);
}

std::string Padded(std::string_view clean, size_t columns, bool left) {
  const size_t width = TextWidth(clean);
  const std::string padding(width < columns ? columns - width : 0, ' ');
  return left ? std::string(clean) + padding : padding + std::string(clean);
}

std::string Wrapped(std::string_view text, size_t columns, size_t lines_max, size_t indent) {
  const std::string clean = Clean(text);
  std::string_view rest = clean;
  std::string lines;
  for (size_t line = 1; !rest.empty(); ++line) {
    if (line > 1) lines += "\n" + std::string(indent, ' ');
    if (line == lines_max) return lines + Printable(rest, columns);
    size_t bytes = BytesThatFit(rest, columns);
    if (bytes < rest.size()) {
      // Do not break in a word, unless the word fills the line.
      const size_t space = rest.substr(0, bytes + 1).rfind(' ');
      if (space != std::string_view::npos && space > 0) bytes = space;
      bytes = std::max<size_t>(bytes, 1);
    }
    lines += rest.substr(0, bytes);
    rest.remove_prefix(bytes);
    while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  }
  return lines;
}

}  // namespace dws::dwsctl
