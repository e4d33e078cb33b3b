// The inner loops that choose how numbers are coded (FORMAT.md, "Values"). In dense blocks they
// process every element. One variant for each instruction set that is faster; all compute the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/instruction_set.h"

namespace dws::kernels {

// In all functions the machine must support `set`.

// The largest of `count` values; 0 if there are none.
uint64_t MaxValue(InstructionSet set, const uint64_t* values, size_t count);

// How many of `count` values are below 2^width, width at most 64.
size_t CountNarrow(InstructionSet set, const uint64_t* values, size_t count, uint32_t width);

// The sum of the quotients value >> width (width below 64), cut to a limit, and the number of
// quotients that reach the limit.
struct QuotientSum {
  uint64_t quotients = 0;
  uint64_t at_limit = 0;

  QuotientSum& operator+=(const QuotientSum& more) {
    quotients += more.quotients;
    at_limit += more.at_limit;
    return *this;
  }
  friend bool operator==(const QuotientSum&, const QuotientSum&) = default;
};
// Adds those of `count` values to `sums`, which have one for each width from `width` on, all
// below 64. `limit` is from 1 to kQuotientLimitMax.
inline constexpr uint32_t kQuotientLimitMax = 1 << 16;
void SumQuotients(InstructionSet set, const uint64_t* values, size_t count, uint32_t width,
                  uint32_t limit, std::span<QuotientSum> sums);

// The variants.
uint64_t MaxValueAvx512(const uint64_t* values, size_t count);
size_t CountNarrowAvx512(const uint64_t* values, size_t count, uint32_t width);
QuotientSum SumQuotientsAvx512(const uint64_t* values, size_t count, uint32_t width,
                               uint32_t limit);

}  // namespace dws::kernels
