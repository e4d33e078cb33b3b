#include "tools/dwsctl/text/text_table.h"

#include <catch2/catch.hpp>
#include <limits>

namespace dws::dwsctl {

TEST_CASE("bytes are printed with the unit that keeps them short", "[dwsctl]") {
  CHECK(FormatBytes(0) == "0 B");
  CHECK(FormatBytes(1023) == "1023 B");
  CHECK(FormatBytes(1024) == "1.0 KiB");
  CHECK(FormatBytes((1 << 20) - 1) == "1.0 MiB");
  CHECK(FormatBytes(uint64_t{5} << 29) == "2.5 GiB");
  CHECK(FormatBytes(std::numeric_limits<uint64_t>::max()) == "16.0 EiB");
}

TEST_CASE("times are printed with the unit that keeps them short", "[dwsctl]") {
  CHECK(FormatSeconds(0) == "0 us");
  CHECK(FormatSeconds(0.00083) == "830 us");
  CHECK(FormatSeconds(0.0124) == "12.4 ms");
  CHECK(FormatSeconds(0.99999) == "1.0 s");
  CHECK(FormatSeconds(3.21) == "3.2 s");
  CHECK(FormatSeconds(59.99) == "1 min 0 s");
  CHECK(FormatSeconds(252) == "4 min 12 s");
  CHECK(FormatSeconds(12'000) == "3 h 20 min");
  CHECK(FormatSeconds(435'600) == "5 d 1 h");
}

TEST_CASE("an impossible time is printed as a dash", "[dwsctl]") {
  CHECK(FormatSeconds(-1) == "-");
  CHECK(FormatSeconds(std::numeric_limits<double>::quiet_NaN()) == "-");
  CHECK(FormatSeconds(std::numeric_limits<double>::infinity()) == "-");
}

TEST_CASE("a share of zero is printed as a dash", "[dwsctl]") {
  CHECK(FormatShare(1, 120) == "0.83 %");
  CHECK(FormatShare(0, 0) == "-");
}

TEST_CASE("a ratio keeps one decimal while it is small", "[dwsctl]") {
  CHECK(FormatRatio(200'000, 900) == "222x");
  CHECK(FormatRatio(30, 20) == "1.5x");
  CHECK(FormatRatio(0, 20) == "-");
  CHECK(FormatRatio(20, 0) == "-");
}

TEST_CASE("moments are printed in UTC and an unset one as a dash", "[dwsctl]") {
  CHECK(FormatUnixTime(0) == "-");
  CHECK(FormatUnixTime(1'772'366'405.7) == "2026-03-01 12:00:05 UTC");
  CHECK(FormatUnixTime(1e300) == "-");
  CHECK(FormatUnixTime(std::numeric_limits<double>::quiet_NaN()) == "-");
}

TEST_CASE("a table aligns figures to the right and names to the left", "[dwsctl]") {
  CHECK(FormatTable({{.title = "name", .left = true}, {.title = "wire"}},
                    {{"a", "12.0 KiB"}, {"longer", "3 B"}}, 2) ==
        "  name        wire\n"
        "  a       12.0 KiB\n"
        "  longer       3 B\n");
  CHECK(FormatTable({{.title = "n", .left = true}, {.title = "x"}}, {{"\u65e5", "1"}, {"abc", "2"}},
                    0) ==
        "n    x\n"
        "\u65e5   1\n"
        "abc  2\n");
}

}  // namespace dws::dwsctl
