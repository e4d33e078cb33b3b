// For AVX-512 too: blocks have too few changes for wider vectors to gain.
#include "common/delta/kernels/class_steps.h"

#if defined(__x86_64__)
#include <cstring>

#include "common/base/intrinsics.h"

namespace dws::kernels::internal {

DWS_TARGET_AVX2 void ClassesOfAvx2(const uint8_t* bytes, uint32_t count, const ClassTable& table,
                                   uint8_t* classes) {
  constexpr uint32_t kLanes = 32;
  uint32_t begin = 0;
  for (; begin + kLanes <= count; begin += kLanes) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + begin));
    __m256i classes_of = _mm256_setzero_si256();
    for (uint32_t i = 0; i < table.threshold_count; ++i) {
      const __m256i threshold = _mm256_set1_epi8(static_cast<int8_t>(table.thresholds[i]));
      const __m256i reaches = _mm256_cmpeq_epi8(_mm256_max_epu8(x, threshold), x);
      classes_of = _mm256_sub_epi8(classes_of, reaches);  // adds 1 where the threshold is reached
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(classes + begin), classes_of);
  }
  for (; begin < count; ++begin) {
    classes[begin] = static_cast<uint8_t>(ClassOf(table, bytes[begin]));
  }
}

DWS_TARGET_AVX2 void MaskBelowAvx2(const uint8_t* bytes, uint32_t count, uint8_t limit,
                                   uint64_t* words) {
  const __m256i limits = _mm256_set1_epi8(static_cast<int8_t>(limit));
  alignas(32) uint8_t tail[64];
  for (uint32_t begin = 0; begin < count; begin += 64) {
    const uint8_t* at = bytes + begin;
    if (count - begin < 64) {
      std::memset(tail, 0xFF, sizeof(tail));  // not below any limit
      std::memcpy(tail, at, count - begin);
      at = tail;
    }
    uint64_t not_below = 0;
    for (uint32_t half = 0; half < 2; ++half) {
      const __m256i x =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + size_t{half} * 32));
      const __m256i reaches = _mm256_cmpeq_epi8(_mm256_max_epu8(x, limits), x);
      not_below |= uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(reaches))} << (half * 32);
    }
    words[begin / 64] = ~not_below;
  }
}

DWS_TARGET_AVX2 uint64_t SumStepBitsAvx2(const SizedSteps& steps, const HotScale& hot) {
  const __m256i below = _mm256_set1_epi32(hot.below);
  const __m256i scale = _mm256_set1_epi32(hot.scale);
  const __m256i width_max = _mm256_set1_epi32(static_cast<int>(hot.width_max));
  const __m256i quotient_max = _mm256_set1_epi32(static_cast<int>(hot.quotient_max));
  const __m256i one = _mm256_set1_epi32(1);
  __m256i sums = _mm256_setzero_si256();  // at most 2^16 steps of less than 2^16 bits
  for (size_t i = 0; i < steps.count; i += kStepGroup) {
    const __m256i bytes =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(steps.bytes + i)));
    const __m256i width = _mm256_min_epi32(
        _mm256_max_epi32(_mm256_sub_epi32(scale, bytes), _mm256_setzero_si256()), width_max);
    const __m256i sizes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(steps.sizes + i));
    const __m256i quotient = _mm256_min_epu32(_mm256_srlv_epi32(sizes, width), quotient_max);
    const __m256i hot_bits = _mm256_add_epi32(_mm256_add_epi32(width, one), quotient);
    const __m256i cold_bits =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(steps.cold_bits + i));
    sums = _mm256_add_epi32(
        sums, _mm256_blendv_epi8(cold_bits, hot_bits, _mm256_cmpgt_epi32(below, bytes)));
  }
  alignas(32) uint32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sums);
  uint64_t bits = 0;
  for (const uint32_t lane : lanes) bits += lane;
  return bits;
}

}  // namespace dws::kernels::internal
#endif
