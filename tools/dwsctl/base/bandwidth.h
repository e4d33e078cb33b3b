// Parses link speeds as people write them. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dws::dwsctl {

struct Bandwidth {
  std::string text;  // as it was written
  double bytes_per_second = 0;
};

// "300MB/s", "10 Gbit/s", "1.5GiB/s": a number above 0 and a unit of bits or bytes per second with
// k, M, G, T (powers of 1000) or Ki, Mi, Gi, Ti (of 1024); the space is optional. nullopt: another
// form.
std::optional<Bandwidth> ParseBandwidth(std::string_view text);

}  // namespace dws::dwsctl
