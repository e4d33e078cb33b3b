// The one home of prometheus-cpp: the metrics of a process, and their text for Prometheus.
//
// What is counted as it happens is a Counter or a Histogram, made once and incremented from
// anywhere. What is merely a state (how much is retained, who is connected) is not kept twice: a
// collect function reads it when somebody scrapes.
//
//   Metrics metrics(MetricLabels{{"dws_job", job}});
//   Counter repairs = metrics.AddCounter("dws_receiver_repairs_total", "Tensors taken in full.");
//   metrics.OnCollect([&](Scrape& scrape) { scrape.Gauge("dws_ready", "...", ready() ? 1 : 0); });
//   repairs.Increment();
//
// Names, units and labels are listed in docs/metrics.md, which a test holds against the daemons.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace prometheus {
class Counter;
class Histogram;
}  // namespace prometheus

namespace dws {

// Names to values. Values may come from outside: they are shortened to limits::kIdBytesMax, and
// what is not UTF-8 or is a control character becomes U+FFFD. Names are ours.
using MetricLabels = std::map<std::string, std::string>;

// Upper bounds of a histogram's buckets, ascending; one up to infinity is always added.
namespace buckets {
// What somebody waits for, a trainer or an engine: 100 us to 60 s.
inline constexpr std::array kStallSeconds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005,
                                             0.01,   0.025,   0.05,   0.1,   0.25,   0.5,
                                             1.0,    2.5,     5.0,    10.0,  30.0,   60.0};
// What happens behind: 1 ms to 1 h.
inline constexpr std::array kStageSeconds = {0.001, 0.0025, 0.005, 0.01,  0.025, 0.05,
                                             0.1,   0.25,   0.5,   1.0,   2.5,   5.0,
                                             10.0,  30.0,   60.0,  300.0, 900.0, 3600.0};
}  // namespace buckets

// A handle, to be copied; good as long as its Metrics. Threads: safe from any, a few nanoseconds.
class Counter {
 public:
  void Increment(double amount = 1);  // amount >= 0
  double value() const;

 private:
  friend class Metrics;
  explicit Counter(prometheus::Counter* counter) : counter_(counter) {}
  prometheus::Counter* counter_;
};

// The same for a distribution.
class Histogram {
 public:
  void Observe(double value);

 private:
  friend class Metrics;
  explicit Histogram(prometheus::Histogram* histogram) : histogram_(histogram) {}
  prometheus::Histogram* histogram_;
};

// What a collect function writes to, during one scrape.
class Scrape {
 public:
  // One sample. Those of one name have one help text and the same label names. The second of equal
  // labels is left out, so is what exceeds limits::kMetricSeriesMax for a name: the gauge
  // dws_metrics_dropped_series tells how many.
  void Gauge(const std::string& name, std::string_view help, double value,
             const MetricLabels& labels = {});
  // A total that is kept elsewhere. `name` ends in _total.
  void Counter(const std::string& name, std::string_view help, double value,
               const MetricLabels& labels = {});

 private:
  friend class Metrics;
  class Families;
  explicit Scrape(Families& families) : families_(families) {}
  Families& families_;
};

// Lifecycle: Add and OnCollect while the daemon is put together, before the first Text.
// Threads: Text and the handles, any.
class Metrics {
 public:
  // `constant` labels are on every sample.
  explicit Metrics(MetricLabels constant);
  ~Metrics();

  // Again with the same name and other labels: another series of the same metric. A series is there
  // from now on, at zero. A name that is no metric's, or is another kind's, is our bug: CHECKed.
  Counter AddCounter(const std::string& name, const std::string& help,
                     const MetricLabels& labels = {});
  Histogram AddHistogram(const std::string& name, const std::string& help,
                         std::span<const double> buckets, const MetricLabels& labels = {});

  // `collect` runs in each Text, on its thread, several at a time; it must not block, and stays
  // callable until the last Text.
  using Collect = std::function<void(Scrape&)>;
  void OnCollect(Collect collect);

  // Everything in Prometheus' text format, ascending by name.
  std::string Text() const;

  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dws
