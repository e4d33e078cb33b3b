// Bandwidths on the command line.
#include "tools/dwsctl/base/bandwidth.h"

#include <catch2/catch.hpp>

namespace dws::dwsctl {

TEST_CASE("a bandwidth is a number with a unit of bits or bytes per second", "[dwsctl]") {
  CHECK(ParseBandwidth("300MB/s")->bytes_per_second == Approx(300e6));
  CHECK(ParseBandwidth("10 Gbit/s")->bytes_per_second == Approx(1.25e9));
  CHECK(ParseBandwidth("1.5GiB/s")->bytes_per_second == Approx(1.5 * 1024 * 1024 * 1024));
  CHECK(ParseBandwidth("8bit/s")->bytes_per_second == Approx(1));
  CHECK(ParseBandwidth("64KiB/s")->bytes_per_second == Approx(65536));
  CHECK(ParseBandwidth("300MB/s")->text == "300MB/s");
}

TEST_CASE("a malformed bandwidth is refused", "[dwsctl]") {
  for (const char* text : {"", "300", "MB/s", "0MB/s", "-1MB/s", "1MB", "1 PB/s", "1MB/s ",
                           "nanMB/s", "infMB/s", "1e3MB/s", "1miB/s", "1 bits/s"}) {
    CAPTURE(text);
    CHECK_FALSE(ParseBandwidth(text).has_value());
  }
}

}  // namespace dws::dwsctl
