#include "common/base/utf8.h"

#include <catch2/catch.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace dws {
namespace {

// The encoding of the Unicode standard; for every code point except the surrogates.
std::string Encoded(char32_t c) {
  const auto tail = [c](int shift) { return static_cast<char>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | (c >> 6)), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xE0 | (c >> 12)), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | (c >> 18)), tail(12), tail(6), tail(0)};
}

TEST_CASE("every code point is read and is refused when its last byte is missing", "[utf8]") {
  size_t wrong = 0;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    const std::string bytes = Encoded(c);
    const Utf8Character read = FirstUtf8Character(bytes + "x");
    if (read.code_point != c || read.size_bytes != bytes.size()) ++wrong;
    if (bytes.size() == 1) continue;
    const std::string_view cut = std::string_view(bytes).substr(0, bytes.size() - 1);
    if (FirstUtf8Character(cut).size_bytes != 0) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("overlong forms and surrogates and numbers above Unicode are not UTF-8", "[utf8]") {
  for (const std::string_view bytes :
       {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\xED\xA0\x80", "\xED\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\x80", "\xFF", "\xC3("}) {
    CHECK(FirstUtf8Character(bytes).size_bytes == 0);
  }
}

TEST_CASE("a text is shortened between characters, never inside one", "[utf8]") {
  const std::string text = "a\u00e4\u20ac\U0001f600";  // of 1, 2, 3 and 4 bytes
  const std::vector<size_t> sizes = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 10};
  for (size_t bytes_max = 0; bytes_max < sizes.size(); ++bytes_max) {
    CHECK(Utf8Prefix(text, bytes_max) == text.substr(0, sizes[bytes_max]));
  }
}

}  // namespace
}  // namespace dws
