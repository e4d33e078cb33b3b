// Reading text from outside as UTF-8, which it may not be.
#pragma once

#include <cstddef>
#include <string_view>

namespace dws {

struct Utf8Character {
  char32_t code_point = 0;
  size_t size_bytes = 0;  // 1 to 4; 0: the bytes are no UTF-8
};

// The first character of `text`, which is not empty. Too long a form, a surrogate, what lies above
// U+10FFFF and a character that is cut off are no UTF-8. Pure.
Utf8Character FirstUtf8Character(std::string_view text);

// The start of `text`, at most `bytes_max` of it, with no character cut in two: a Protobuf string
// that is no UTF-8 is a message nobody can parse. Pure.
std::string_view Utf8Prefix(std::string_view text, size_t bytes_max);

}  // namespace dws
