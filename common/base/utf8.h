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

}  // namespace dws
