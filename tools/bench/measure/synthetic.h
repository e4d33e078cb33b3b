// Two consecutive versions of a tensor as the codec's bars assume them: changed positions are
// independent of each other (Bernoulli), every step is one unit in the last place up or down.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dws::bench {

struct Versions {
  std::vector<std::byte> before;
  std::vector<std::byte> after;
};

// `elements` BF16 weights of about normal distribution, the second version with chance `density` of
// a change. The same arguments give the same bytes.
Versions MakeBf16(uint64_t elements, double density);

// Lower bound for any code of such changes, in bits for each changed element: H(p)/p + 1.
double EntropyBits(double density);

}  // namespace dws::bench
