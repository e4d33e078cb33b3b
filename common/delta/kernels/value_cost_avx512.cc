#include "common/base/intrinsics.h"
#include "common/delta/bits/element.h"
#include "common/delta/kernels/value_cost.h"

#if defined(__x86_64__)

namespace dws::kernels {
namespace {

// The first `left` of eight lanes.
DWS_TARGET_AVX512 inline __mmask8 First8(size_t left) {
  return left >= 8 ? static_cast<__mmask8>(0xFF) : static_cast<__mmask8>((1U << left) - 1);
}

}  // namespace

DWS_TARGET_AVX512 uint64_t MaxValueAvx512(const uint64_t* values, size_t count) {
  __m512i max = _mm512_setzero_si512();
  for (size_t i = 0; i < count; i += 8) {
    max = _mm512_max_epu64(max, _mm512_maskz_loadu_epi64(First8(count - i), values + i));
  }
  return static_cast<uint64_t>(_mm512_reduce_max_epu64(max));
}

DWS_TARGET_AVX512 size_t CountNarrowAvx512(const uint64_t* values, size_t count, uint32_t width) {
  const __m512i wide = _mm512_set1_epi64(static_cast<int64_t>(~LowBits(width)));
  size_t narrow = 0;
  for (size_t i = 0; i < count; i += 8) {
    const __mmask8 some = First8(count - i);
    const __m512i value = _mm512_maskz_loadu_epi64(some, values + i);
    narrow +=
        static_cast<size_t>(__builtin_popcount(_mm512_mask_testn_epi64_mask(some, value, wide)));
  }
  return narrow;
}

DWS_TARGET_AVX512 QuotientSum SumQuotientsAvx512(const uint64_t* values, size_t count,
                                                 uint32_t width, uint32_t limit) {
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(width));
  const __m512i most = _mm512_set1_epi64(static_cast<int64_t>(limit));
  __m512i sums = _mm512_setzero_si512();
  uint64_t at_limit = 0;
  for (size_t i = 0; i < count; i += 8) {
    const __mmask8 some = First8(count - i);
    const __m512i value = _mm512_maskz_loadu_epi64(some, values + i);
    const __m512i quotient = _mm512_min_epu64(_mm512_srl_epi64(value, shift), most);
    sums = _mm512_add_epi64(sums, quotient);
    at_limit += static_cast<uint64_t>(
        __builtin_popcount(_mm512_mask_cmpeq_epi64_mask(some, quotient, most)));
  }
  return {.quotients = static_cast<uint64_t>(_mm512_reduce_add_epi64(sums)), .at_limit = at_limit};
}

}  // namespace dws::kernels
#endif
