#include "common/service/metrics/metrics.h"

#include <time.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "common/model/limits.h"
#include "common/service/metrics/service_metrics.h"

namespace dws {
namespace {

std::vector<std::string> Lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The value of the sample that `line` begins with.
double Value(const std::string& text, const std::string& sample) {
  for (const std::string& line : Lines(text)) {
    if (line.starts_with(sample + " ")) return std::atof(line.c_str() + sample.size());
  }
  FAIL("no sample " << sample << " in\n" << text);
  return 0;
}

size_t Count(const std::string& text, const std::string& begin) {
  size_t count = 0;
  for (const std::string& line : Lines(text)) count += line.starts_with(begin) ? 1 : 0;
  return count;
}

TEST_CASE("a counter is shown from the start and adds up over threads", "[metrics]") {
  Metrics metrics(MetricLabels{{"dws_job", "j"}});
  Counter delta = metrics.AddCounter("served_bytes_total", "Help.", {{"kind", "delta"}});
  Counter full = metrics.AddCounter("served_bytes_total", "Help.", {{"kind", "full"}});
  CHECK(Value(metrics.Text(), R"(served_bytes_total{dws_job="j",kind="full"})") == 0);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([delta]() mutable {
      for (int n = 0; n < 10'000; ++n) delta.Increment(2);
    });
  }
  for (std::thread& thread : threads) thread.join();
  full.Increment();
  const std::string text = metrics.Text();
  CHECK(Value(text, R"(served_bytes_total{dws_job="j",kind="delta"})") == 80'000);
  CHECK(Value(text, R"(served_bytes_total{dws_job="j",kind="full"})") == 1);
  CHECK(Count(text, "# TYPE served_bytes_total counter") == 1);
}

TEST_CASE("an observation counts in the buckets and sum and count of a histogram", "[metrics]") {
  Metrics metrics({});
  Histogram pause = metrics.AddHistogram("pause_seconds", "Help.", buckets::kStallSeconds);
  pause.Observe(0.0002);
  pause.Observe(0.2);
  pause.Observe(1000);
  const std::string text = metrics.Text();
  CHECK(Value(text, R"(pause_seconds_bucket{le="0.0001"})") == 0);
  CHECK(Value(text, R"(pause_seconds_bucket{le="0.00025"})") == 1);
  CHECK(Value(text, R"(pause_seconds_bucket{le="60"})") == 2);
  CHECK(Value(text, R"(pause_seconds_bucket{le="+Inf"})") == 3);
  CHECK(Value(text, "pause_seconds_count") == 3);
  CHECK(Value(text, "pause_seconds_sum") == Approx(1000.2002));
}

TEST_CASE("gauges are read at scrape time and their series come and go", "[metrics]") {
  Metrics metrics(MetricLabels{{"dws_job", "j"}});
  std::vector<std::string> receivers = {"a", "b"};
  metrics.OnCollect([&](Scrape& scrape) {
    for (const std::string& id : receivers) {
      scrape.Gauge("lag_versions", "Help.", 3, {{"receiver_id", id}});
    }
  });
  CHECK(Value(metrics.Text(), R"(lag_versions{dws_job="j",receiver_id="a"})") == 3);
  receivers = {"b"};
  CHECK(Count(metrics.Text(), "lag_versions{") == 1);
}

TEST_CASE("label values from outside cannot break the page", "[metrics]") {
  Metrics metrics({});
  const std::vector<std::string> hostile = {
      "a\"} 1\nevil_total 5",    "back\\slash",  std::string("nul\0here", 8), "\xFF\xFE",
      "\xC0\x80 overlong",       "\xED\xA0\x80", "\xF4\x90\x80\x80",          "cut \xE2\x82",
      std::string(100'000, 'x'), "\xC3\xA4 fine"};
  metrics.OnCollect([&](Scrape& scrape) {
    for (const std::string& id : hostile) scrape.Gauge("lag", "Help.", 1, {{"id", id}});
  });
  const std::string text = metrics.Text();
  CHECK(Count(text, "evil") == 0);
  CHECK(Count(text, "lag{id=") == hostile.size());
  CHECK(Value(text,
              "lag{id=\"a\\\"} 1\xEF\xBF\xBD"
              "evil_total 5\"}") == 1);
  CHECK(Value(text, R"(lag{id="back\\slash"})") == 1);
  CHECK(Value(text, "lag{id=\"\xEF\xBF\xBD\xEF\xBF\xBD\"}") == 1);
  CHECK(Value(text, "lag{id=\"\xC3\xA4 fine\"}") == 1);
  for (const char byte : text) CHECK((byte == '\n' || static_cast<unsigned char>(byte) >= 0x20));
  for (const std::string& line : Lines(text)) CHECK(line.size() < 2 * limits::kIdBytesMax);
}

TEST_CASE("the series of one metric are bounded and dropped series are counted", "[metrics]") {
  Metrics metrics({});
  metrics.OnCollect([](Scrape& scrape) {
    for (size_t i = 0; i < limits::kMetricSeriesMax + 5; ++i) {
      scrape.Gauge("lag", "Help.", 1, {{"id", std::to_string(i)}});
    }
    scrape.Gauge("lag_of_twins", "Help.", 1, {{"id", "same"}});
    scrape.Gauge("lag_of_twins", "Help.", 2, {{"id", "same"}});
  });
  const std::string text = metrics.Text();
  CHECK(Count(text, "lag{") == limits::kMetricSeriesMax);
  CHECK(Count(text, "lag_of_twins{") == 1);
  CHECK(Value(text, "dws_metrics_dropped_series") == 6);
}

TEST_CASE("every daemon has metrics of its process and build", "[metrics]") {
  Metrics metrics({});
  AddServiceMetrics(metrics);
  const std::string text = metrics.Text();
  const auto now = static_cast<double>(::time(nullptr));
  CHECK(Value(text, "process_resident_memory_bytes") > 1 << 20);
  CHECK(Value(text, "process_cpu_seconds_total") > 0);
  CHECK(Value(text, "process_open_fds") >= 3);
  CHECK(Value(text, "process_start_time_seconds") <= now + 2);
  CHECK(Value(text, "process_start_time_seconds") > now - 3600);
  CHECK(Count(text, "dws_build_info{") == 1);
}

}  // namespace
}  // namespace dws
