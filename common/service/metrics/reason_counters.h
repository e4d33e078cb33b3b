// One counter for each status code, as label `reason`: why something was refused.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "common/service/metrics/metrics.h"

namespace dws {

// Threads: safe from any.
class ReasonCounters {
 public:
  // Every code has its series from the start: a rate sees the first refusal too.
  ReasonCounters(Metrics& metrics, const std::string& name, const std::string& help);

  // `code` is a google.rpc.Code, as it came over the wire; one that is none counts as "unknown".
  void Increment(uint32_t code);

 private:
  static constexpr size_t kCodes = 17;
  std::array<Counter, kCodes> counters_;
};

}  // namespace dws
