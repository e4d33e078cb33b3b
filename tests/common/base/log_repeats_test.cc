// Which repeated lines are written; each of the others is counted.
#include "common/base/log/log_repeats.h"

#include <catch2/catch.hpp>

namespace dws {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr LogRepeats::Options kOptions{.lines_max = 3, .window = seconds(10)};

TimePoint At(milliseconds since) { return TimePoint(since); }

TEST_CASE("repeats above the limit are counted, and the count has the last one's fields", "[log]") {
  LogRepeats repeats(kOptions);
  for (int i = 0; i < 10; ++i) {
    CHECK(repeats.Admit(LogLevel::kError, "failed", {{"try", i}}, At(milliseconds(i))) == (i < 3));
  }
  CHECK(repeats.TakeCounts(At(seconds(9))).empty());
  const auto counts = repeats.TakeCounts(At(seconds(10)));
  REQUIRE(counts.size() == 1);
  CHECK(counts[0].event == "failed");
  CHECK(counts[0].level == LogLevel::kError);
  CHECK(counts[0].suppressed == 7);
  REQUIRE(counts[0].last_fields.size() == 1);
  CHECK(counts[0].last_fields[0].value() == "9");
  CHECK(repeats.TakeCounts(At(seconds(11))).empty());
}

TEST_CASE("the next window writes lines again", "[log]") {
  LogRepeats repeats(kOptions);
  for (int i = 0; i < 5; ++i) {
    static_cast<void>(repeats.Admit(LogLevel::kInfo, "a", {}, At(seconds(0))));
  }
  CHECK(repeats.TakeCounts(At(seconds(10))).size() == 1);
  CHECK(repeats.Admit(LogLevel::kInfo, "a", {}, At(seconds(10))));
}

TEST_CASE("each event and each level has a window of its own", "[log]") {
  LogRepeats repeats(kOptions);
  for (int i = 0; i < 3; ++i) {
    CHECK(repeats.Admit(LogLevel::kInfo, "a", {}, At(seconds(0))));
    CHECK(repeats.Admit(LogLevel::kError, "a", {}, At(seconds(0))));
    CHECK(repeats.Admit(LogLevel::kInfo, "b", {}, At(seconds(0))));
  }
  CHECK_FALSE(repeats.Admit(LogLevel::kInfo, "a", {}, At(seconds(1))));
  CHECK(repeats.Admit(LogLevel::kWarning, "a", {}, At(seconds(1))));
}

TEST_CASE("debug lines are all written", "[log]") {
  LogRepeats repeats(kOptions);
  for (int i = 0; i < 100; ++i) CHECK(repeats.Admit(LogLevel::kDebug, "a", {}, At(seconds(0))));
}

TEST_CASE("every occurrence is either written or in a count", "[log]") {
  LogRepeats repeats(kOptions);
  uint64_t written = 0, counted = 0, happened = 0;
  for (int ms = 0; ms < 60'000; ms += 7) {
    for (const auto& count : repeats.TakeCounts(At(milliseconds(ms)))) counted += count.suppressed;
    written += repeats.Admit(LogLevel::kWarning, "a", {}, At(milliseconds(ms))) ? 1 : 0;
    ++happened;
  }
  for (const auto& count : repeats.TakeAllCounts()) counted += count.suppressed;
  CHECK(written + counted == happened);
  CHECK(written <= 7 * 3);
}

TEST_CASE("events beyond the number that is remembered are all written", "[log]") {
  LogRepeats repeats(kOptions);
  for (size_t i = 0; i < LogRepeats::kEventsMax; ++i) {
    static_cast<void>(repeats.Admit(LogLevel::kInfo, std::to_string(i), {}, At(seconds(0))));
  }
  for (int i = 0; i < 10; ++i)
    CHECK(repeats.Admit(LogLevel::kInfo, "one more", {}, At(seconds(0))));
}

}  // namespace
}  // namespace dws
