#include <algorithm>

#include "common/delta/bits/element.h"
#include "common/delta/kernels/value_cost.h"

namespace dws::kernels {

// Only AVX-512 has its own variant; every other instruction set takes these loops.
uint64_t MaxValue(InstructionSet set, const uint64_t* values, size_t count) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return MaxValueAvx512(values, count);
#endif
  uint64_t max = 0;
  for (size_t i = 0; i < count; ++i) max = std::max(max, values[i]);
  return max;
}

size_t CountNarrow(InstructionSet set, const uint64_t* values, size_t count, uint32_t width) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return CountNarrowAvx512(values, count, width);
#endif
  const uint64_t wide = ~LowBits(width);
  size_t narrow = 0;
  for (size_t i = 0; i < count; ++i) narrow += (values[i] & wide) == 0 ? 1 : 0;
  return narrow;
}

QuotientSum SumQuotients(InstructionSet set, const uint64_t* values, size_t count, uint32_t width,
                         uint64_t limit) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return SumQuotientsAvx512(values, count, width, limit);
#endif
  QuotientSum sum;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t quotient = std::min(values[i] >> width, limit);
    sum.quotients += quotient;
    sum.at_limit += quotient == limit ? 1 : 0;
  }
  return sum;
}

}  // namespace dws::kernels
