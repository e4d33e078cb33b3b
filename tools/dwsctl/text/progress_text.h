// Progress of something that moves bytes: bars and rates.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "proto/admin.pb.h"

namespace dws::dwsctl {

// "[#####-----]", `columns` wide (at least 3); `share` is limited to 0 to 1.
std::string FormatBar(double share, size_t columns);

// The rate of one step of an operation, since the step began. Not thread-safe.
class RateMeter {
 public:
  // `bytes` of `step` are done at `now`. Another step, or fewer bytes, starts a new measurement.
  // Returns bytes per second; nullopt until half a second has passed.
  std::optional<double> Add(std::string_view step, uint64_t bytes,
                            std::chrono::steady_clock::time_point now);

 private:
  std::string step_;
  uint64_t first_bytes_ = 0;
  uint64_t last_bytes_ = 0;
  std::chrono::steady_clock::time_point first_;
  bool begun_ = false;
};

// One line of at most `columns` (at least 20) for a terminal, without a line end:
// "comparing live weights [####------]  42 %, 1.0 GiB of 2.4 GiB, 310.0 MiB/s".
std::string FormatProgress(const v1::OperationProgress& progress, std::optional<double> rate,
                           size_t columns);

}  // namespace dws::dwsctl
