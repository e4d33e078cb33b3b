// The end of AbsMax, for the instruction sets of x86. Included by one file for each, after it has
// defined DWS_QUANTISE_CODE (arithmetic.h says why) and included the intrinsics.
#pragma once

#include <cstdint>

namespace dws::quantise::kernels {

// The largest of sixteen magnitudes.
DWS_QUANTISE_CODE uint32_t LargestOf(__m256i magnitudes) {
  const __m128i half =
      _mm_max_epu16(_mm256_castsi256_si128(magnitudes), _mm256_extracti128_si256(magnitudes, 1));
  // The instruction finds the least of eight.
  const __m128i least = _mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(-1)));
  return static_cast<uint16_t>(~_mm_cvtsi128_si32(least));
}

}  // namespace dws::quantise::kernels
