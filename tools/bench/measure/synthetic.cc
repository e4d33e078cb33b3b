#include "tools/bench/measure/synthetic.h"

#include <bit>
#include <cmath>

#include "common/base/bytes.h"
#include "common/delta/bits/ordinal.h"

namespace dws::bench {
namespace {

// SplitMix64.
class Random {
 public:
  uint64_t Next() {
    uint64_t x = state_ += 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
  }
  // In (0, 1].
  double Unit() { return static_cast<double>((Next() >> 11) + 1) * 0x1p-53; }

 private:
  uint64_t state_ = 20'260'101;
};

}  // namespace

Versions MakeBf16(uint64_t elements, double density) {
  Random random;
  Versions versions;
  versions.before.resize(elements * 2);
  for (uint64_t i = 0; i < elements; ++i) {
    // The sum of four uniforms of 16 bits is near enough to a normal distribution.
    const uint64_t bits = random.Next();
    const int32_t sum = static_cast<int32_t>((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) +
                                             (bits >> 32 & 0xFFFF) + (bits >> 48)) -
                        0x20000;
    const float weight = static_cast<float>(sum) * 1e-6F;
    StoreLe(versions.before.data() + i * 2,
            static_cast<uint16_t>(std::bit_cast<uint32_t>(weight) >> 16));
  }
  versions.after = versions.before;
  const double log_keep = std::log1p(-density);
  for (double at = 0;; at += 1) {
    at += std::floor(std::log(random.Unit()) /
                     log_keep);  // gaps of a Bernoulli process are geometric
    if (at >= static_cast<double>(elements)) return versions;
    std::byte* element = versions.after.data() + static_cast<uint64_t>(at) * 2;
    const uint16_t step = (random.Next() & 1) != 0 ? 1 : 0xFFFF;
    const uint16_t ordinal = ToOrdinal(LoadLe<uint16_t>(element), Mapping::kFloat);
    StoreLe(element, FromOrdinal(static_cast<uint16_t>(ordinal + step), Mapping::kFloat));
  }
}

double EntropyBits(double density) {
  const double p = density;
  if (p <= 0 || p >= 1) return 1;
  return (-p * std::log2(p) - (1 - p) * std::log2(1 - p)) / p + 1;
}

}  // namespace dws::bench
