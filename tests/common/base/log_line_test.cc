// The text of a log line, for every kind of content.
#include "common/base/log/log_line.h"

#include <catch2/catch.hpp>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace dws {
namespace {

const std::vector<LogFormat> kFormats = {LogFormat::kText, LogFormat::kJournal, LogFormat::kJson};

std::string Format(LogFormat format, const std::vector<LogField>& fields, uint64_t suppressed = 0,
                   LogLevel level = LogLevel::kWarning) {
  return FormatLogLine(
      format,
      {.time = std::chrono::system_clock::time_point(std::chrono::milliseconds(1'700'000'000'007)),
       .level = level,
       .program = "dws-sender",
       .event = "nack",
       .fields = fields,
       .suppressed = suppressed});
}

TEST_CASE("the three formats of one line", "[log]") {
  const std::vector<LogField> fields = {
      {"version", 7}, {"pause_ms", 0.25}, {"ready", false}, {"reason", "it's \"late\"\n\\"}};
  CHECK(Format(LogFormat::kText, fields) ==
        "2023-11-14T22:13:20.007Z W dws-sender nack version=7 pause_ms=0.25 ready=false "
        R"(reason='it\'s "late"\x0a\\')");
  CHECK(Format(LogFormat::kJournal, fields) ==
        R"(<4>nack version=7 pause_ms=0.25 ready=false reason='it\'s "late"\x0a\\')");
  CHECK(Format(LogFormat::kJson, fields) ==
        R"({"time":"2023-11-14T22:13:20.007Z","level":"warning","program":"dws-sender",)"
        R"("event":"nack","version":7,"pause_ms":0.25,"ready":false,)"
        R"("reason":"it's \"late\"\u000a\\"})");
}

TEST_CASE("the journal's priorities are syslog's", "[log]") {
  CHECK(Format(LogFormat::kJournal, {}, 0, LogLevel::kDebug) == "<7>nack");
  CHECK(Format(LogFormat::kJournal, {}, 0, LogLevel::kInfo) == "<6>nack");
  CHECK(Format(LogFormat::kJournal, {}, 0, LogLevel::kError) == "<3>nack");
}

TEST_CASE("fields keep their types in JSON and a field with a reserved name is renamed", "[log]") {
  const auto line =
      nlohmann::json::parse(Format(LogFormat::kJson,
                                   {{"least", std::numeric_limits<int64_t>::min()},
                                    {"most", std::numeric_limits<uint64_t>::max()},
                                    {"large", 1e300},
                                    {"none", std::numeric_limits<double>::quiet_NaN()},
                                    {"endless", std::numeric_limits<double>::infinity()},
                                    {"number", "7"},
                                    {"time", "mine"}},
                                   12));
  CHECK(line["least"] == std::numeric_limits<int64_t>::min());
  CHECK(line["most"] == std::numeric_limits<uint64_t>::max());
  CHECK(line["large"] == 1e300);
  CHECK(line["none"] == "nan");
  CHECK(line["endless"] == "inf");
  CHECK(line["number"] == "7");
  CHECK(line["time_"] == "mine");
  CHECK(line["suppressed"] == 12);
  CHECK_THAT(Format(LogFormat::kText, {{"a", 1}}, 12), Catch::EndsWith(" nack a=1 suppressed=12"));
}

TEST_CASE("text in every script stays readable", "[log]") {
  const std::string text = "rang 3 is traag: größe, 重み, 😀";
  CHECK_THAT(Format(LogFormat::kText, {{"reason", text}}), Catch::Contains(text));
  CHECK(nlohmann::json::parse(Format(LogFormat::kJson, {{"reason", text}}))["reason"] == text);
}

TEST_CASE("a value with any bytes gives one line of valid UTF-8", "[log]") {
  const std::vector<std::string> pieces = {"\n",
                                           "\r",
                                           "\x1b[31m",
                                           "\x7f",
                                           std::string(1, '\0'),
                                           "\xff",
                                           "\xc3",
                                           "\xc3\xa4",
                                           "\xe2\x80\xa8",
                                           "\xe2\x80\xa9",
                                           "\xc2\x85",
                                           "\xe2\x80\xae",
                                           "\xe2\x80\x8b",
                                           "\xed\xa0\x80",
                                           "\xf0\x9f\x98\x80",
                                           "\xc0\x80",
                                           "\xf4\x90\x80\x80",
                                           "\"",
                                           "'",
                                           "\\",
                                           "a",
                                           "{}%s"};
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    std::string value;
    for (uint32_t i = random() % 40; i > 0; --i) value += pieces[random() % pieces.size()];
    for (const LogFormat format : kFormats) {
      const std::string line = Format(format, {{"reason", value}, {"after", 1}});
      CHECK(line.find_first_of(std::string("\n\r\x1b\x7f\0", 5)) == std::string::npos);
      for (const std::string_view separator :
           {"\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xae", "\xe2\x80\x8b", "\xc2\x85"}) {
        CHECK(line.find(separator) == std::string::npos);
      }
      CHECK_NOTHROW(nlohmann::json(line).dump());  // throws for invalid UTF-8
      if (format == LogFormat::kJson) CHECK(nlohmann::json::parse(line)["after"] == 1);
    }
  }
}

TEST_CASE("a line fits a pipe's buffer, and keeps its event and its other fields", "[log]") {
  for (const LogFormat format : kFormats) {
    for (const size_t size : {4000U, 4096U, 100'000U}) {
      for (const std::string piece : {"a", "\n", "ä", "\xff"}) {
        std::string value;
        while (value.size() < size) value += piece;
        const std::string line =
            Format(format, {{"reason", value}, {"other", value}, {"after", 5}});
        CHECK(line.size() <= kLogLineBytesMax);
        CHECK(line.size() > 1000);
        CHECK_THAT(line, Catch::Contains("nack") && Catch::Contains("…") && Catch::Contains("5"));
        if (format == LogFormat::kJson) CHECK(nlohmann::json::parse(line)["after"] == 5);
      }
    }
    // More fields than any line has: the event is still written.
    std::vector<LogField> many;
    for (int i = 0; i < 1000; ++i) many.emplace_back("key", i);
    CHECK(Format(format, many).size() < 200);
  }
}

}  // namespace
}  // namespace dws
