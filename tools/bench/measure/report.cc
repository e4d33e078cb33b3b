// Each line is flushed when it is known, so that a run that is ended keeps what it has measured.
#include "tools/bench/measure/report.h"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "common/base/check.h"

namespace dws::bench {
namespace {

std::string Verdict(const Measurement& measurement) {
  if (!measurement.bar.has_value()) return "";
  const Bar& bar = *measurement.bar;
  const bool at_least = bar.side == Bar::Side::kAtLeast;
  const bool kept = at_least ? measurement.ratio >= bar.limit : measurement.ratio <= bar.limit;
  return fmt::format("{} {:.5g}  {}", at_least ? ">=" : "<=", bar.limit, kept ? "kept" : "MISSED");
}

}  // namespace

Report::Report() {
  fmt::print("id,case,ours,reference,ratio,unit\n");
  std::fflush(stdout);
}

void Report::Add(Measurement measurement) {
  DWS_CHECK(measurement.what.find(',') == std::string::npos);
  fmt::print("{},{},{:.6g},{:.6g},{:.4f},{}\n", measurement.id, measurement.what, measurement.ours,
             measurement.reference, measurement.ratio, measurement.unit);
  std::fflush(stdout);
  measurements_.push_back(std::move(measurement));
}

void Report::PrintTable() const {
  fmt::print(stderr, "{:<6}{:<74}{:>12}{:>12}  {:<12}{:>9}  {}\n", "id", "case", "ours",
             "reference", "unit", "ratio", "bar");
  for (const Measurement& m : measurements_) {
    fmt::print(stderr, "{:<6}{:<74}{:>12.6g}{:>12.6g}  {:<12}{:>9.3f}  {}\n", m.id, m.what, m.ours,
               m.reference, m.unit, m.ratio, Verdict(m));
  }
}

}  // namespace dws::bench
