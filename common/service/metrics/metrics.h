// The metrics of a process, and their text for Prometheus. The only user of prometheus-cpp.
//
// Events are counted with a Counter or a Histogram, made once and incremented from anywhere. A
// state (how much is retained, who is connected) is not stored a second time: a collect function
// reads it during a scrape.
//
//   Metrics metrics(MetricLabels{{"dws_job", job}});
//   Counter repairs = metrics.AddCounter("dws_receiver_repairs_total", "Tensors taken in full.");
//   metrics.OnCollect([&](Scrape& scrape) { scrape.Gauge("dws_ready", "...", ready() ? 1 : 0); });
//   repairs.Increment();
//
// docs/metrics.md lists names, units and labels; a test compares it with the daemons.
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
// invalid UTF-8 and control characters become U+FFFD. Names are constants of ours.
using MetricLabels = std::map<std::string, std::string>;

// Upper bounds of a histogram's buckets, ascending; one up to infinity is always added.
namespace buckets {
// For times during which a trainer or an engine waits: 100 us to 60 s.
inline constexpr std::array kStallSeconds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005,
                                             0.01,   0.025,   0.05,   0.1,   0.25,   0.5,
                                             1.0,    2.5,     5.0,    10.0,  30.0,   60.0};
// For work in the background: 1 ms to 1 h.
inline constexpr std::array kStageSeconds = {0.001, 0.0025, 0.005, 0.01,  0.025, 0.05,
                                             0.1,   0.25,   0.5,   1.0,   2.5,   5.0,
                                             10.0,  30.0,   60.0,  300.0, 900.0, 3600.0};
}  // namespace buckets

// A handle. It can be copied and is valid as long as its Metrics. Threads: safe from any; a call
// takes a few nanoseconds.
class Counter {
 public:
  void Increment(double amount = 1);  // amount >= 0
  double value() const;

 private:
  friend class Metrics;
  explicit Counter(prometheus::Counter* counter) : counter_(counter) {}
  prometheus::Counter* counter_;
};

// A handle like Counter, for a distribution.
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
  // One sample. All samples of one name have the same help text and the same label names. A second
  // sample with equal labels is dropped, and so are samples beyond limits::kMetricSeriesMax for a
  // name; the gauge dws_metrics_dropped_series counts them.
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

// All metrics of a process. Lifecycle: call Add... and OnCollect while the daemon is set up, before
// the first Text. Threads: Text and the handles are safe from any.
class Metrics {
 public:
  // `constant` labels are on every sample.
  explicit Metrics(MetricLabels constant);
  ~Metrics();

  // A second call with the same name and other labels adds a series to the same metric. The series
  // exists from now on, starting at zero. An invalid name, or one used for another kind, is our
  // bug: CHECKed.
  Counter AddCounter(const std::string& name, const std::string& help,
                     const MetricLabels& labels = {});
  Histogram AddHistogram(const std::string& name, const std::string& help,
                         std::span<const double> buckets, const MetricLabels& labels = {});

  // `collect` runs in each Text, on the thread that calls it, possibly several at a time. It must
  // not block, and must stay callable until the last Text.
  using Collect = std::function<void(Scrape&)>;
  void OnCollect(Collect collect);

  // All metrics in Prometheus' text format, ascending by name.
  std::string Text() const;

  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dws
