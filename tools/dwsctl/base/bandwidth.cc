#include "tools/dwsctl/base/bandwidth.h"

#include <charconv>
#include <cmath>
#include <system_error>

namespace dws::dwsctl {
namespace {

// Removes a prefix such as "k" or "Mi" from `unit` and returns its factor.
double TakePrefix(std::string_view& unit) {
  constexpr std::string_view kPrefixes = "kMGT";  // K is accepted too
  if (unit.empty()) return 1;
  const size_t power = kPrefixes.find(unit[0] == 'K' ? 'k' : unit[0]);
  if (power == std::string_view::npos) return 1;
  unit.remove_prefix(1);
  double base = 1000;
  if (!unit.empty() && unit[0] == 'i') {
    base = 1024;
    unit.remove_prefix(1);
  }
  return std::pow(base, static_cast<double>(power + 1));
}

}  // namespace

std::optional<Bandwidth> ParseBandwidth(std::string_view text) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(number) || number <= 0) return std::nullopt;
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  while (!unit.empty() && unit[0] == ' ') unit.remove_prefix(1);
  const double factor = TakePrefix(unit);
  double bytes = 0;
  if (unit == "B/s") {
    bytes = 1;
  } else if (unit == "bit/s") {
    bytes = 0.125;
  } else {
    return std::nullopt;
  }
  return Bandwidth{.text = std::string(text), .bytes_per_second = number * factor * bytes};
}

}  // namespace dws::dwsctl
