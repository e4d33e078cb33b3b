#include <algorithm>
#include <cstring>
#include <limits>

#include "common/base/check.h"
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

namespace {

// Values that are summed up for all widths while they are in the first-level cache.
constexpr size_t kCached = 1024;
// 16 bytes are a register of every x86-64, and of most other machines.
using Lanes [[gnu::vector_size(16)]] = int32_t;
constexpr size_t kLanes = 4;

QuotientSum SumWide(const uint64_t* values, size_t count, uint32_t width, uint64_t limit) {
  QuotientSum sum;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t quotient = std::min(values[i] >> width, limit);
    sum.quotients += quotient;
    sum.at_limit += quotient == limit ? 1 : 0;
  }
  return sum;
}

// Like SumQuotients, for values below 2^31; `narrow` is padded with zeros to whole vectors. `width`
// is below 32.
QuotientSum SumNarrow(const int32_t* narrow, size_t count, uint32_t width, int32_t limit) {
  const Lanes most = Lanes{} + limit;
  Lanes quotients = {};
  Lanes at_limit = {};
  for (size_t i = 0; i < count; i += kLanes) {
    Lanes quotient;
    std::memcpy(&quotient, narrow + i, sizeof(quotient));
    quotient >>= static_cast<int32_t>(width);
    const Lanes reaches = quotient >= most;  // all ones where the quotient reaches the limit
    quotients += (quotient & ~reaches) | (most & reaches);
    at_limit -= reaches;
  }
  QuotientSum sum;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    sum.quotients += static_cast<uint64_t>(quotients[lane]);
    sum.at_limit += static_cast<uint64_t>(at_limit[lane]);
  }
  return sum;
}

// Sums at most kCached values.
void SumCached(const uint64_t* values, size_t count, uint32_t width, uint32_t limit,
               std::span<QuotientSum> sums) {
  alignas(Lanes) int32_t narrow[kCached + kLanes];
  uint64_t all = 0;
  for (size_t i = 0; i < count; ++i) {
    all |= values[i];
    narrow[i] = static_cast<int32_t>(values[i]);
  }
  std::fill_n(narrow + count, kLanes, 0);
  const bool fit = all <= std::numeric_limits<int32_t>::max();
  for (QuotientSum& sum : sums) {
    sum += fit && width < 32 ? SumNarrow(narrow, count, width, static_cast<int32_t>(limit))
                             : SumWide(values, count, width, limit);
    ++width;
  }
}

}  // namespace

void SumQuotients(InstructionSet set, const uint64_t* values, size_t count, uint32_t width,
                  uint32_t limit, std::span<QuotientSum> sums) {
  DWS_CHECK(width + sums.size() <= 64 && limit > 0 && limit <= kQuotientLimitMax);
  for (size_t i = 0; i < count; i += kCached) {
    const size_t some = std::min(kCached, count - i);
#if defined(__x86_64__)
    if (set == InstructionSet::kAvx512) {
      for (size_t w = 0; w < sums.size(); ++w) {
        sums[w] += SumQuotientsAvx512(values + i, some, width + static_cast<uint32_t>(w), limit);
      }
      continue;
    }
#endif
    SumCached(values + i, some, width, limit, sums);
  }
}

}  // namespace dws::kernels
