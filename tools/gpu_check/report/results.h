// What gpu_check prints: a JSON line on stdout for each check as soon as it is known, a table on
// stderr at the end, and how many passed. tests/gpu/README.md says what the lines hold.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace dws::gpu_check {

// The environment variable that tells the programs that gpu_check runs which section they belong
// to.
inline constexpr const char* kSectionVariable = "DWS_GPU_CHECK_SECTION";

// The required ratio.
struct Bar {
  enum class Side : uint8_t { kAtLeast, kAtMost };
  Side side = Side::kAtMost;
  double limit = 0;

  bool Keeps(double ratio) const {
    return side == Side::kAtLeast ? ratio >= limit : ratio <= limit;
  }
};

// A measurement, compared with the best the machine can do.
struct Figure {
  double value = 0;
  std::string unit;                                // "ms", "GB/s"
  std::optional<double> reference = std::nullopt;  // in the same unit
  std::string of_what = "";                        // what the reference is made of
  double ratio = 0;                                // of the two, in the direction of the bar
  std::optional<Bar> bar = std::nullopt;
};

// The outcome of one check.
struct CheckResult {
  enum class Verdict : uint8_t { kPassed, kFailed, kSkipped };
  std::string section;
  std::string name;
  Verdict verdict = Verdict::kPassed;
  std::string note = "";  // why it failed or was skipped, or a remark
  std::optional<Figure> figure = std::nullopt;
  std::vector<std::pair<std::string, std::string>> facts = {};  // of the machine, by name
};

// Lifecycle: one in each process. Threads: one.
class Results {
 public:
  // Lines name `section`. They are marked when the driver is a fake: figures of such a run mean
  // nothing.
  Results(std::string section, bool fake_driver)
      : section_(std::move(section)), fake_driver_(fake_driver) {}

  void Passed(std::string_view name, std::string_view note = "");
  void Failed(std::string_view name, const Status& why);
  void Skipped(std::string_view name, std::string_view why);
  // Passed or failed by `status`.
  void Checked(std::string_view name, const Status& status);
  // Records a failure if it has a bar and misses it; with a fake driver, bars are reported as
  // skipped.
  void Measured(std::string_view name, const Figure& figure, std::string_view note = "");

  // Facts about the machine, which neither pass nor fail.
  void Told(std::string_view name, std::vector<std::pair<std::string, std::string>> facts);

  bool fake_driver() const { return fake_driver_; }

 private:
  void Add(CheckResult result) const;

  const std::string section_;
  const bool fake_driver_;
};

// To a printed line and back. INVALID_ARGUMENT: not such a line.
std::string ToLine(const CheckResult& result, bool fake_driver);
Result<CheckResult> FromLine(const std::string& line);

// Prints the table of all results to stderr. Returns the counts.
struct Totals {
  int passed = 0;
  int failed = 0;
  int skipped = 0;
};
Totals PrintTable(const std::vector<CheckResult>& results);

}  // namespace dws::gpu_check
