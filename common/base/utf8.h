// Reads text from outside as UTF-8. It may be invalid.
#pragma once

#include <cstddef>
#include <string_view>

namespace dws {

// The first character of a text.
struct Utf8Character {
  char32_t code_point = 0;
  size_t size_bytes = 0;  // 1 to 4; 0: the bytes are not UTF-8
};

// The first character of `text`, which must not be empty. These are not UTF-8: a form longer than
// needed, a surrogate, a code point above U+10FFFF, a character that is cut off. Pure.
Utf8Character FirstUtf8Character(std::string_view text);

// The first `bytes_max` bytes of `text` at most, with no character cut in two: a Protobuf message
// with a string that is not UTF-8 cannot be parsed. Pure.
std::string_view Utf8Prefix(std::string_view text, size_t bytes_max);

}  // namespace dws
