// All series exist from the start, so that a first rejection is an increase that alerts can see.
#include "common/service/metrics/reason_counters.h"

#include <cctype>
#include <utility>

#include "common/base/status.h"

namespace dws {
namespace {

constexpr uint32_t kUnknown = 2;  // UNKNOWN; a peer can send any number, but not make a new series

std::string Reason(size_t code) {
  std::string name = absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
  for (char& letter : name) letter = static_cast<char>(std::tolower(letter));
  return name;
}

template <size_t... kCode>
std::array<Counter, sizeof...(kCode)> Make(Metrics& metrics, const std::string& name,
                                           const std::string& help, std::index_sequence<kCode...>) {
  return {metrics.AddCounter(name, help, {{"reason", Reason(kCode)}})...};
}

}  // namespace

ReasonCounters::ReasonCounters(Metrics& metrics, const std::string& name, const std::string& help)
    : counters_(Make(metrics, name, help, std::make_index_sequence<kCodes>())) {}

void ReasonCounters::Increment(uint32_t code) {
  counters_[code < kCodes ? code : kUnknown].Increment();
}

}  // namespace dws
