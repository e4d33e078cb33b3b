#include "common/service/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <sstream>
#include <utility>

#include "common/base/check.h"
#include "common/base/printable.h"
#include "common/base/threads/mutex.h"
#include "common/base/utf8.h"
#include "common/model/limits.h"

namespace dws {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Cleans a label value, because one bad value makes Prometheus refuse the whole page.
std::string CleanValue(std::string_view text) {
  std::string clean;
  while (!text.empty()) {
    const auto [code_point, size] = FirstUtf8Character(text);
    const bool printable = size > 0 && !IsUnprintable(code_point);
    const std::string_view next = printable ? text.substr(0, size) : kReplacement;
    if (clean.size() + next.size() > limits::kIdBytesMax) break;
    clean += next;
    text.remove_prefix(std::max<size_t>(size, 1));
  }
  return clean;
}

MetricLabels CleanLabels(const MetricLabels& labels) {
  MetricLabels clean;
  for (const auto& [name, value] : labels) clean.emplace(name, CleanValue(value));
  return clean;
}

}  // namespace

void Counter::Increment(double amount) { counter_->Increment(amount); }
double Counter::value() const { return counter_->Value(); }
void Histogram::Observe(double value) { histogram_->Observe(value); }

// The metric families of one scrape by name, registered ones included.
class Scrape::Families {
 public:
  Families(std::vector<prometheus::MetricFamily> registered, const MetricLabels& constant)
      : constant_(constant) {
    for (prometheus::MetricFamily& family : registered) {
      const std::string name = family.name;
      families_.emplace(name, std::move(family));
    }
  }

  void Add(const std::string& name, std::string_view help, prometheus::MetricType type,
           double value, const MetricLabels& labels) {
    prometheus::MetricFamily& family = families_[name];
    if (family.name.empty()) {
      family.name = name;
      family.help = help;
      family.type = type;
    }
    DWS_CHECK(family.type == type);
    MetricLabels clean = CleanLabels(labels);
    std::set<MetricLabels>& seen = seen_[name];
    if (seen.size() >= limits::kMetricSeriesMax || seen.contains(clean)) {
      ++dropped_;
      return;
    }
    prometheus::ClientMetric sample;
    for (const auto& [key, text] : constant_) sample.label.push_back({key, text});
    for (const auto& [key, text] : clean) sample.label.push_back({key, text});
    sample.gauge.value = value;
    sample.counter.value = value;
    family.metric.push_back(std::move(sample));
    seen.insert(std::move(clean));
  }

  std::vector<prometheus::MetricFamily> Take() {
    Add("dws_metrics_dropped_series", "Samples left out of this page: too many, or duplicates.",
        prometheus::MetricType::Gauge, static_cast<double>(dropped_), {});
    std::vector<prometheus::MetricFamily> families;
    for (auto& [name, family] : families_) families.push_back(std::move(family));
    return families;
  }

 private:
  const MetricLabels& constant_;
  std::map<std::string, prometheus::MetricFamily> families_;
  std::map<std::string, std::set<MetricLabels>> seen_;
  uint64_t dropped_ = 0;
};

void Scrape::Gauge(const std::string& name, std::string_view help, double value,
                   const MetricLabels& labels) {
  families_.Add(name, help, prometheus::MetricType::Gauge, value, labels);
}

void Scrape::Counter(const std::string& name, std::string_view help, double value,
                     const MetricLabels& labels) {
  families_.Add(name, help, prometheus::MetricType::Counter, value, labels);
}

class Metrics::Impl {
 public:
  explicit Impl(MetricLabels constant) : constant_(CleanLabels(constant)) {}

  // The library throws an exception for a bad name. Nothing catches it, so the process ends, as
  // with any CHECK.
  prometheus::Counter& AddCounter(const std::string& name, const std::string& help,
                                  const MetricLabels& labels) {
    return prometheus::BuildCounter()
        .Name(name)
        .Help(help)
        .Labels(constant_)
        .Register(registry_)
        .Add(CleanLabels(labels));
  }

  prometheus::Histogram& AddHistogram(const std::string& name, const std::string& help,
                                      std::span<const double> bounds, const MetricLabels& labels) {
    return prometheus::BuildHistogram()
        .Name(name)
        .Help(help)
        .Labels(constant_)
        .Register(registry_)
        .Add(CleanLabels(labels),
             prometheus::Histogram::BucketBoundaries(bounds.begin(), bounds.end()));
  }

  void OnCollect(Collect collect) {
    MutexLock lock(mutex_);
    collects_.push_back(std::move(collect));
  }

  std::string Text() const {
    std::vector<Collect> collects;
    {
      MutexLock lock(mutex_);
      collects = collects_;
    }
    Scrape::Families families(registry_.Collect(), constant_);
    Scrape scrape(families);
    for (const Collect& collect : collects) collect(scrape);
    std::ostringstream text;
    prometheus::TextSerializer().Serialize(text, families.Take());
    return std::move(text).str();
  }

 private:
  const MetricLabels constant_;
  prometheus::Registry registry_;
  mutable Mutex mutex_;
  std::vector<Collect> collects_ GUARDED_BY(mutex_);
};

Metrics::Metrics(MetricLabels constant) : impl_(std::make_unique<Impl>(std::move(constant))) {}
Metrics::~Metrics() = default;

Counter Metrics::AddCounter(const std::string& name, const std::string& help,
                            const MetricLabels& labels) {
  return Counter(&impl_->AddCounter(name, help, labels));
}

Histogram Metrics::AddHistogram(const std::string& name, const std::string& help,
                                std::span<const double> buckets, const MetricLabels& labels) {
  return Histogram(&impl_->AddHistogram(name, help, buckets, labels));
}

void Metrics::OnCollect(Collect collect) { impl_->OnCollect(std::move(collect)); }

std::string Metrics::Text() const { return impl_->Text(); }

}  // namespace dws
