#include "tools/dwsctl/text/progress_text.h"

#include <catch2/catch.hpp>

#include "tools/dwsctl/base/printable.h"

namespace dws::dwsctl {
namespace {

v1::OperationProgress Progress(uint64_t done, uint64_t total) {
  v1::OperationProgress progress;
  progress.set_step("comparing live weights");
  progress.set_done_bytes(done);
  progress.set_total_bytes(total);
  return progress;
}

}  // namespace

TEST_CASE("a bar is full only when all is done", "[dwsctl]") {
  CHECK(FormatBar(0, 12) == "[----------]");
  CHECK(FormatBar(0.5, 12) == "[#####-----]");
  CHECK(FormatBar(0.999, 12) == "[#########-]");
  CHECK(FormatBar(1, 12) == "[##########]");
  CHECK(FormatBar(7, 4) == "[##]");
  CHECK(FormatBar(-1, 4) == "[--]");
  CHECK(FormatBar(0.0 / 0.0, 0) == "[-]");
}

TEST_CASE("progress has a step, a bar, bytes and a rate", "[dwsctl]") {
  CHECK(FormatProgress(Progress(1 << 30, uint64_t{5} << 29), 310.0 * (1 << 20), 79) ==
        "comparing live weights [######---------]  40 %, 1.0 GiB of 2.5 GiB, 310.0 MiB/s");
  CHECK(FormatProgress(Progress(0, 0), std::nullopt, 79) == "comparing live weights");
  CHECK(FormatProgress(Progress(512, 0), std::nullopt, 79) == "comparing live weights 512 B");
}

TEST_CASE("progress fits every width", "[dwsctl]") {
  v1::OperationProgress progress = Progress(1 << 30, uint64_t{5} << 29);
  progress.set_step(std::string(300, 's') + "\x1b[2J");
  progress.set_mismatches(12);
  for (size_t columns = 20; columns < 200; ++columns) {
    const std::string line = FormatProgress(progress, 1e9, columns);
    REQUIRE(TextWidth(line) <= columns);
    REQUIRE(line.find('\x1b') == std::string::npos);
  }
}

TEST_CASE("the rate is that of the step and is shown after half a second", "[dwsctl]") {
  using std::chrono::milliseconds;
  const std::chrono::steady_clock::time_point begin;
  RateMeter meter;
  CHECK(meter.Add("a", 1000, begin) == std::nullopt);
  CHECK(meter.Add("a", 1400, begin + milliseconds(400)) == std::nullopt);
  CHECK(meter.Add("a", 3000, begin + milliseconds(2000)) == 1000.0);
  CHECK(meter.Add("b", 3000, begin + milliseconds(2100)) == std::nullopt);
  CHECK(meter.Add("b", 5000, begin + milliseconds(4100)) == 1000.0);
  CHECK(meter.Add("b", 0, begin + milliseconds(4200)) ==
        std::nullopt);  // the step has started again
}

}  // namespace dws::dwsctl
