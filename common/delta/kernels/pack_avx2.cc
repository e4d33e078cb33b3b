#include "common/base/intrinsics.h"
#include "common/delta/bits/element.h"
#include "common/delta/kernels/pack.h"

#if defined(__x86_64__)

namespace dws::kernels {
namespace {

// The gaps before positions i to i + 7, i at least 1.
DWS_TARGET_AVX2 inline __m128i GapsBefore8(const uint16_t* positions, uint32_t i) {
  const __m128i at = _mm_loadu_si128(reinterpret_cast<const __m128i*>(positions + i));
  const __m128i last = _mm_loadu_si128(reinterpret_cast<const __m128i*>(positions + i - 1));
  return _mm_add_epi16(_mm_sub_epi16(at, last), _mm_set1_epi16(-1));
}

DWS_TARGET_AVX2 inline __m256i GapsBefore16(const uint16_t* positions, uint32_t i) {
  const __m256i at = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(positions + i));
  const __m256i last = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(positions + i - 1));
  return _mm256_add_epi16(_mm256_sub_epi16(at, last), _mm256_set1_epi16(-1));
}

DWS_TARGET_AVX2 inline uint32_t GapBefore(const uint16_t* positions, uint32_t i) {
  return static_cast<uint16_t>(positions[i] - positions[i - 1] - 1);
}

// Puts four remainders of k bits, which are side by side in `bits`.
DWS_TARGET_AVX2 inline void PutFour(uint64_t bits, uint32_t k, BitWriter& writer) {
  if (4 * k <= BitWriter::kPutBitsMax) return writer.Put(bits, 4 * k);
  writer.Put(bits & LowBits(2 * k), 2 * k);
  writer.Put(bits >> (2 * k), 2 * k);
}

// Puts four quotients in unary. `ends`: for each of them, the number of bits up to its end.
DWS_TARGET_AVX2 inline void PutFourUnary(uint64_t ends, uint64_t quotients, BitWriter& writer) {
  const uint32_t width = static_cast<uint32_t>(ends >> 48);
  if (width <= BitWriter::kPutBitsMax) [[likely]] {
    const uint64_t bits = uint64_t{1} << ((ends & 0xFFFF) - 1) |
                          uint64_t{1} << ((ends >> 16 & 0xFFFF) - 1) |
                          uint64_t{1} << ((ends >> 32 & 0xFFFF) - 1) | uint64_t{1} << (width - 1);
    return writer.Put(bits, width);
  }
  for (uint32_t i = 0; i < 4; ++i) writer.PutUnary(quotients >> (16 * i) & 0xFFFF);
}

}  // namespace

DWS_TARGET_AVX2 uint64_t SumGapQuotientsAvx2(const uint16_t* positions, uint32_t count,
                                             uint32_t k) {
  // With k = 0 the sum telescopes. Only with k > 0 does every quotient fit a signed 16-bit number.
  if (k == 0) return positions[count - 1] - (count - 1);
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(k));
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sums = _mm256_setzero_si256();
  uint64_t sum = positions[0] >> k;
  uint32_t i = 1;
  for (; i + 16 <= count; i += 16) {
    const __m256i quotients = _mm256_srl_epi16(GapsBefore16(positions, i), shift);
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(quotients, ones));
  }
  for (; i < count; ++i) sum += GapBefore(positions, i) >> k;
  const __m128i four =
      _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  return sum + static_cast<uint32_t>(_mm_cvtsi128_si32(two)) +
         static_cast<uint32_t>(_mm_extract_epi32(two, 1));
}

DWS_TARGET_AVX2 void PackGapRemaindersAvx2(const uint16_t* positions, uint32_t count, uint32_t k,
                                           BitWriter& writer) {
  if (k == 0) return;
  BitWriter out = writer;  // a copy stays in registers
  const uint64_t lane = LowBits(k);
  const uint64_t lanes = lane * 0x0001'0001'0001'0001;
  out.Put(positions[0] & lane, k);
  uint32_t i = 1;
  for (; i + 8 <= count; i += 8) {
    const __m128i gaps = GapsBefore8(positions, i);
    const uint64_t low = _pext_u64(static_cast<uint64_t>(_mm_cvtsi128_si64(gaps)), lanes);
    const uint64_t high = _pext_u64(static_cast<uint64_t>(_mm_extract_epi64(gaps, 1)), lanes);
    if (8 * k <= BitWriter::kPutBitsMax) {
      out.Put(low | high << (4 * k), 8 * k);
    } else {
      PutFour(low, k, out);
      PutFour(high, k, out);
    }
  }
  for (; i < count; ++i) out.Put(GapBefore(positions, i) & lane, k);
  writer = out;
}

DWS_TARGET_AVX2 void PackGapQuotientsAvx2(const uint16_t* positions, uint32_t count, uint32_t k,
                                          BitWriter& writer) {
  BitWriter out = writer;
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(k));
  out.PutUnary(positions[0] >> k);
  uint32_t i = 1;
  for (; i + 8 <= count; i += 8) {
    const __m128i quotients = _mm_srl_epi16(GapsBefore8(positions, i), shift);
    // Bits up to the end of each: sums of quotient + 1, at most the distance between two positions.
    __m128i ends = _mm_add_epi16(quotients, _mm_set1_epi16(1));
    ends = _mm_add_epi16(ends, _mm_slli_epi64(ends, 16));
    ends = _mm_add_epi16(ends, _mm_slli_epi64(ends, 32));
    PutFourUnary(static_cast<uint64_t>(_mm_cvtsi128_si64(ends)),
                 static_cast<uint64_t>(_mm_cvtsi128_si64(quotients)), out);
    PutFourUnary(static_cast<uint64_t>(_mm_extract_epi64(ends, 1)),
                 static_cast<uint64_t>(_mm_extract_epi64(quotients, 1)), out);
  }
  for (; i < count; ++i) out.PutUnary(GapBefore(positions, i) >> k);
  writer = out;
}

DWS_TARGET_AVX2 void ScanStepsAvx2(const uint64_t* steps, uint32_t count, uint32_t element_bits,
                                   StepScan& scan) {
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(64 - element_bits));
  const __m256i one = _mm256_set1_epi64x(1);
  uint32_t found = 0;
  uint32_t i = 0;
  for (uint32_t word = 0; i + 64 <= count; ++word) {
    uint64_t signs = 0;
    for (uint32_t bit = 0; bit < 64; bit += 4, i += 4) {
      // The steps are at the top of their lanes, where +1 and -1 are plus and minus one unit.
      const __m256i step =
          _mm256_sll_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(steps + i)), shift);
      const __m256i unit = _mm256_sll_epi64(one, shift);
      const __m256i minus = _mm256_sub_epi64(_mm256_setzero_si256(), unit);
      signs |= static_cast<uint64_t>(_mm256_movemask_pd(_mm256_castsi256_pd(step))) << bit;
      const __m256i usual =
          _mm256_or_si256(_mm256_cmpeq_epi64(step, unit), _mm256_cmpeq_epi64(step, minus));
      for (uint32_t others =
               ~static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(usual))) & 0xF;
           others != 0; others &= others - 1) {
        const uint32_t at = i + static_cast<uint32_t>(__builtin_ctz(others));
        const int64_t value = SignedStep(steps[at], element_bits);
        const uint64_t magnitude =
            value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
        scan.exceptions[found] = static_cast<uint16_t>(at);
        scan.magnitudes[found] = magnitude - 2;
        ++found;
      }
    }
    scan.signs[word] = signs;
  }
  StepScan rest{.signs = scan.signs + i / 64,
                .exceptions = scan.exceptions + found,
                .magnitudes = scan.magnitudes + found};
  ScanStepsPortable(steps + i, count - i, element_bits, rest);
  for (uint32_t j = 0; j < rest.exception_count; ++j) {
    rest.exceptions[j] = static_cast<uint16_t>(rest.exceptions[j] + i);
  }
  scan.exception_count = found + rest.exception_count;
}

}  // namespace dws::kernels
#endif
