#include "common/base/intrinsics.h"
#include "common/delta/bits/element.h"
#include "common/delta/kernels/pack.h"

#if defined(__x86_64__)

namespace dws::kernels {
namespace {

DWS_TARGET_AVX512 inline __m512i GapsBefore32(const uint16_t* positions, uint32_t i,
                                              __mmask32 some) {
  const __m512i at = _mm512_maskz_loadu_epi16(some, positions + i);
  const __m512i last = _mm512_maskz_loadu_epi16(some, positions + i - 1);
  return _mm512_maskz_add_epi16(some, _mm512_sub_epi16(at, last), _mm512_set1_epi16(-1));
}

// The first `left` of 32 lanes.
DWS_TARGET_AVX512 inline __mmask32 First32(uint32_t left) {
  return left >= 32 ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
}

DWS_TARGET_AVX512 inline uint32_t GapBefore(const uint16_t* positions, uint32_t i) {
  return static_cast<uint16_t>(positions[i] - positions[i - 1] - 1);
}

DWS_TARGET_AVX512 inline uint64_t OrOf(__m512i x) {
  return static_cast<uint64_t>(_mm512_reduce_or_epi64(x));
}

}  // namespace

DWS_TARGET_AVX512 uint64_t SumGapQuotientsAvx512(const uint16_t* positions, uint32_t count,
                                                 uint32_t k) {
  // With k = 0 the sum telescopes. Only with k > 0 does every quotient fit a signed 16-bit number.
  if (k == 0) return positions[count - 1] - (count - 1);
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(k));
  const __m512i ones = _mm512_set1_epi16(1);
  __m512i sums = _mm512_setzero_si512();
  for (uint32_t i = 1; i < count; i += 32) {
    const __m512i quotients =
        _mm512_srl_epi16(GapsBefore32(positions, i, First32(count - i)), shift);
    sums = _mm512_add_epi32(sums, _mm512_madd_epi16(quotients, ones));
  }
  return (positions[0] >> k) + static_cast<uint32_t>(_mm512_reduce_add_epi32(sums));
}

DWS_TARGET_AVX512 void PackGapQuotientsAvx512(const uint16_t* positions, uint32_t count, uint32_t k,
                                              BitWriter& writer) {
  BitWriter out = writer;  // a copy stays in registers
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(k));
  out.PutUnary(positions[0] >> k);
  uint32_t i = 1;
  for (; i + 8 <= count; i += 8) {
    const __m128i at = _mm_loadu_si128(reinterpret_cast<const __m128i*>(positions + i));
    const __m128i last = _mm_loadu_si128(reinterpret_cast<const __m128i*>(positions + i - 1));
    const __m128i gaps = _mm_add_epi16(_mm_sub_epi16(at, last), _mm_set1_epi16(-1));
    const __m128i quotients = _mm_srl_epi16(gaps, shift);
    // The ends of the quotients: sums of quotient + 1, at most the distance between two positions.
    __m128i ends = _mm_add_epi16(quotients, _mm_set1_epi16(1));
    ends = _mm_add_epi16(ends, _mm_slli_si128(ends, 2));
    ends = _mm_add_epi16(ends, _mm_slli_si128(ends, 4));
    ends = _mm_add_epi16(ends, _mm_slli_si128(ends, 8));
    const uint32_t width = static_cast<uint32_t>(_mm_extract_epi16(ends, 7));
    if (width <= BitWriter::kPutBitsMax) [[likely]] {
      const __m512i ones = _mm512_cvtepu16_epi64(_mm_add_epi16(ends, _mm_set1_epi16(-1)));
      out.Put(OrOf(_mm512_sllv_epi64(_mm512_set1_epi64(1), ones)), width);
      continue;
    }
    for (uint32_t j = i; j < i + 8; ++j) out.PutUnary(GapBefore(positions, j) >> k);
  }
  for (; i < count; ++i) out.PutUnary(GapBefore(positions, i) >> k);
  writer = out;
}

DWS_TARGET_AVX512 void ScanStepsAvx512(const uint64_t* steps, uint32_t count, uint32_t element_bits,
                                       StepScan& scan) {
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(64 - element_bits));
  const __m512i one = _mm512_set1_epi64(1);
  const __m512i two = _mm512_set1_epi64(2);
  const __m128i iota = _mm_set_epi16(7, 6, 5, 4, 3, 2, 1, 0);
  uint32_t found = 0;
  for (uint32_t word = 0; word * 64 < count; ++word) {
    uint64_t signs = 0;
    for (uint32_t bit = 0; bit < 64 && word * 64 + bit < count; bit += 8) {
      const uint32_t i = word * 64 + bit;
      const uint32_t left = count - i;
      const __mmask8 some = left >= 8 ? 0xFF : static_cast<__mmask8>((1U << left) - 1);
      const __m512i wide = _mm512_sll_epi64(_mm512_maskz_loadu_epi64(some, steps + i), shift);
      signs |= static_cast<uint64_t>(_mm512_movepi64_mask(wide)) << bit;
      // Unsigned, the magnitude of the most negative step is a number too.
      const __m512i magnitude = _mm512_abs_epi64(_mm512_sra_epi64(wide, shift));
      const __mmask8 others = _mm512_cmpgt_epu64_mask(magnitude, one);
      _mm512_storeu_si512(scan.magnitudes + found,
                          _mm512_maskz_compress_epi64(others, _mm512_sub_epi64(magnitude, two)));
      const __m128i numbers = _mm_add_epi16(iota, _mm_set1_epi16(static_cast<short>(i)));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(scan.exceptions + found),
                       _mm_maskz_compress_epi16(others, numbers));
      found += static_cast<uint32_t>(__builtin_popcount(others));
    }
    scan.signs[word] = signs;
  }
  scan.exception_count = found;
}

}  // namespace dws::kernels
#endif
