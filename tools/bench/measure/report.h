// What the benchmark prints: one CSV line for each measurement on stdout, as soon as it is known,
// and a table with the bars on stderr at the end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dws::bench {

// The required ratio. A measurement without a bar is only reported.
struct Bar {
  enum class Side : uint8_t { kAtLeast, kAtMost };
  Side side = Side::kAtLeast;
  double limit = 0;
};

constexpr Bar AtLeast(double limit) { return {.side = Bar::Side::kAtLeast, .limit = limit}; }
constexpr Bar AtMost(double limit) { return {.side = Bar::Side::kAtMost, .limit = limit}; }

// One line of the report.
struct Measurement {
  std::string id;        // "P1a"
  std::string what;      // the case; no comma
  double ours = 0;       // in `unit`
  double reference = 0;  // in `unit`
  double ratio = 0;      // in the direction of the bar
  std::string unit;      // "GB/s"
  std::optional<Bar> bar = std::nullopt;
};

// Lifecycle: made once; prints the CSV's head. Threads: one.
class Report {
 public:
  Report();
  // Prints the CSV line.
  void Add(Measurement measurement);
  // The table of all measurements, to stderr.
  void PrintTable() const;

 private:
  std::vector<Measurement> measurements_;
};

}  // namespace dws::bench
