#include "tools/dwsctl/text/progress_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/dwsctl/base/printable.h"
#include "tools/dwsctl/text/text_table.h"

namespace dws::dwsctl {
namespace {

constexpr size_t kBarColumnsMax = 24;
constexpr size_t kBarColumnsMin = 8;
constexpr size_t kStepColumnsMax = 40;
constexpr double kFirstRateSeconds = 0.5;

}  // namespace

std::string FormatBar(double share, size_t columns) {
  const size_t cells = std::max<size_t>(columns, 3) - 2;
  const double inside = std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0.0;
  // Round down, so that the bar is full only at the end.
  const auto full = static_cast<size_t>(std::floor(inside * static_cast<double>(cells)));
  return "[" + std::string(full, '#') + std::string(cells - full, '-') + "]";
}

std::optional<double> RateMeter::Add(std::string_view step, uint64_t bytes,
                                     std::chrono::steady_clock::time_point now) {
  if (!begun_ || step != step_ || bytes < last_bytes_) {
    step_ = step;
    first_bytes_ = bytes;
    first_ = now;
    begun_ = true;
  }
  last_bytes_ = bytes;
  const double seconds = std::chrono::duration<double>(now - first_).count();
  if (seconds < kFirstRateSeconds) return std::nullopt;
  return static_cast<double>(bytes - first_bytes_) / seconds;
}

std::string FormatProgress(const v1::OperationProgress& progress, std::optional<double> rate,
                           size_t columns) {
  const uint64_t total = progress.total_bytes();
  const uint64_t done = progress.done_bytes();
  std::string figures;
  double share = 0;
  if (total > 0) {
    share = static_cast<double>(std::min(done, total)) / static_cast<double>(total);
    figures = fmt::format("{:3.0f} %, {} of {}", std::floor(100 * share), FormatBytes(done),
                          FormatBytes(total));
  } else if (done > 0) {
    figures = FormatBytes(done);
  }
  if (rate.has_value() && *rate >= 1) {
    figures += fmt::format(", {}/s", FormatBytes(static_cast<uint64_t>(*rate)));
  }
  if (progress.mismatches() > 0) figures += fmt::format(", {} differ", progress.mismatches());

  const size_t step_columns = std::clamp<size_t>(
      columns > figures.size() + 1 ? columns - figures.size() - 1 : 0, 10, kStepColumnsMax);
  std::string line = Printable(progress.step(), step_columns);
  const size_t used = TextWidth(line) + 1 + figures.size() + 1;
  if (total > 0 && used + kBarColumnsMin <= columns) {
    line += " " + FormatBar(share, std::min(kBarColumnsMax, columns - used));
  }
  if (!figures.empty()) line += (line.empty() ? "" : " ") + figures;
  return Printable(line, columns);
}

}  // namespace dws::dwsctl
