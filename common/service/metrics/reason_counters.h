// One counter for each status code, with the code as label `reason`: why something was refused.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "common/service/metrics/metrics.h"

namespace dws {

// A family of counters over all status codes. Lives no longer than its Metrics. Threads: safe from
// any.
class ReasonCounters {
 public:
  // Creates the series of every code at once, so that a rate() sees the first refusal too.
  ReasonCounters(Metrics& metrics, const std::string& name, const std::string& help);

  // `code` is a google.rpc.Code as received; an invalid number counts as "unknown".
  void Increment(uint32_t code);

 private:
  static constexpr size_t kCodes = 17;
  std::array<Counter, kCodes> counters_;
};

}  // namespace dws
