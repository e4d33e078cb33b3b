#include "common/base/printable.h"

#include <catch2/catch.hpp>
#include <string>

#include "common/base/utf8.h"

namespace dws {
namespace {

TEST_CASE("characters that could control a terminal are escaped and all others stay",
          "[printable]") {
  CHECK(EscapeUnprintable("layers.0.q") == "layers.0.q");
  CHECK(EscapeUnprintable("a\nb\x1b[31mc\x7f") == "a\\x0ab\\x1b[31mc\\x7f");
  CHECK(EscapeUnprintable(std::string_view("\0", 1)) == "\\x00");
  CHECK(EscapeUnprintable("Z\u00fcrich \u4e2d") == "Z\u00fcrich \u4e2d");
  CHECK(EscapeUnprintable("\u009b31m \u202etxt \u200b \U000e0041") ==
        "\\x9b31m \\u202etxt \\u200b \\U000e0041");
  CHECK(EscapeUnprintable("\xff\xc3(") == "\\xff\\xc3(");
}

TEST_CASE("escaping twice changes nothing, and the result is UTF-8", "[printable]") {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const std::string once = EscapeUnprintable(all + "\u2028\\");
  CHECK(EscapeUnprintable(once) == once);
  for (std::string_view rest = once; !rest.empty();) {
    const Utf8Character next = FirstUtf8Character(rest);
    REQUIRE(next.size_bytes > 0);
    CHECK_FALSE(IsUnprintable(next.code_point));
    rest.remove_prefix(next.size_bytes);
  }
}

}  // namespace
}  // namespace dws
