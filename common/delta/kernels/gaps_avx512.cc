// Decodes gaps in two passes over `positions`:
//   1. quotients: the numbers of the one bits among 64 are compressed out of 0 to 63
//   2. remainders: 32 at a time, four in each 64-bit lane, cut out by a multi-shift, then summed up
// Both passes compute modulo 2^16. The last position is also computed in 64 bits. If it is too
// large, the caller must not use any position. Otherwise none has wrapped around, because positions
// ascend.
#include "common/delta/kernels/gaps.h"

#if defined(__x86_64__)
#include <bit>
#include <cstring>

#include "common/base/instruction_set.h"
#include "common/base/intrinsics.h"

namespace dws::kernels {
namespace {

constexpr uint32_t kGroup = 32;  // remainders at a time

// The lowest `count` bits set, at most 64.
DWS_TARGET_AVX512 inline uint64_t LowOnes(uint64_t count) {
  return _bzhi_u64(~uint64_t{0}, static_cast<uint32_t>(count));
}

// The 64 bits from bit `bit` on; zeros past the end.
DWS_TARGET_AVX512 inline uint64_t LoadBits64(const GapInput& input, uint64_t bit) {
  const uint64_t at = bit / 8;
  const uint32_t shift = bit % 8;
  uint64_t low = 0;
  uint64_t high = 0;
  if (at + 9 <= input.size_bytes) {
    std::memcpy(&low, input.payload + at, 8);
    high = static_cast<uint64_t>(input.payload[at + 8]);
  } else if (at < input.size_bytes) {
    const uint64_t left = input.size_bytes - at;  // at most 8
    std::memcpy(&low, input.payload + at, left);
  }
  return shift == 0 ? low : low >> shift | high << (64 - shift);
}

// Pass 1: positions[i] is the number of bits before the i-th one bit, modulo 2^16. Returns the
// number of bits up to the last of them, included; 0 when there are too few.
DWS_TARGET_AVX512 inline uint64_t SelectOnes(const GapInput& input, uint16_t* positions) {
  const __m512i numbers = _mm512_set_epi8(
      63, 62, 61, 60, 59, 58, 57, 56, 55, 54, 53, 52, 51, 50, 49, 48, 47, 46, 45, 44, 43, 42, 41,
      40, 39, 38, 37, 36, 35, 34, 33, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18,
      17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  uint32_t found = 0;
  for (uint64_t base = 0;; base += 64) {
    if ((input.quotients + base) / 8 >= input.size_bytes) return 0;
    const uint64_t word = LoadBits64(input, input.quotients + base);
    const uint32_t ones = static_cast<uint32_t>(std::popcount(word));
    const __m512i compressed = _mm512_maskz_compress_epi8(word, numbers);
    const __m512i begin = _mm512_set1_epi16(static_cast<int16_t>(static_cast<uint16_t>(base)));
    const __m512i low =
        _mm512_add_epi16(_mm512_cvtepu8_epi16(_mm512_castsi512_si256(compressed)), begin);
    const __m512i high =
        _mm512_add_epi16(_mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(compressed, 1)), begin);
    const uint32_t left = input.count - found;
    if (left > 64) {
      _mm512_storeu_si512(positions + found, low);
      if (ones > 32) _mm512_storeu_si512(positions + found + 32, high);
      found += ones;
      continue;
    }
    const uint64_t kept = LowOnes(left < ones ? left : ones);
    _mm512_mask_storeu_epi16(positions + found, static_cast<__mmask32>(kept), low);
    if (kept >> 32 != 0) {
      _mm512_mask_storeu_epi16(positions + found + 32, static_cast<__mmask32>(kept >> 32), high);
    }
    if (left <= ones) {
      const uint64_t last = _pdep_u64(uint64_t{1} << (left - 1), word);
      return base + static_cast<uint64_t>(std::countr_zero(last)) + 1;
    }
    found += ones;
  }
}

// Inclusive sums of 32 lanes of 16 bits.
DWS_TARGET_AVX512 inline __m512i PrefixSums(__m512i x) {
  // First inside lanes of 128 bits, then with the totals of the lanes before.
  x = _mm512_add_epi16(x, _mm512_bslli_epi128(x, 2));
  x = _mm512_add_epi16(x, _mm512_bslli_epi128(x, 4));
  x = _mm512_add_epi16(x, _mm512_bslli_epi128(x, 8));
  // The last sum of a 128-bit lane, in all its elements.
  const __m512i totals = _mm512_shuffle_epi8(x, _mm512_set1_epi16(static_cast<int16_t>(0x0F0E)));
  const __m512i one_up = _mm512_maskz_shuffle_i64x2(0xFC, totals, totals, 0x90);    // 0 0 1 2
  const __m512i two_up = _mm512_maskz_shuffle_i64x2(0xF0, totals, totals, 0x40);    // - - 0 1
  const __m512i three_up = _mm512_maskz_shuffle_i64x2(0xC0, totals, totals, 0x00);  // - - - 0
  return _mm512_add_epi16(_mm512_add_epi16(x, one_up), _mm512_add_epi16(two_up, three_up));
}

// How to cut 32 remainders of k bits out of 64 bytes, of which the first `skip` bits do not belong
// to them.
struct RemainderCut {
  __m512i bytes;   // for each 64-bit lane the eight bytes with its four remainders
  __m512i shifts;  // for each byte of the result its first bit in the lane
  __m512i mask;    // k bits of each 16
};

DWS_TARGET_AVX512 inline RemainderCut MakeRemainderCut(uint32_t k, uint32_t skip) {
  alignas(64) uint8_t bytes[64];
  alignas(64) uint8_t shifts[64];
  for (uint32_t lane = 0; lane < 8; ++lane) {
    const uint32_t bit = 4 * lane * k;
    for (uint32_t j = 0; j < 8; ++j) {
      bytes[lane * 8 + j] = static_cast<uint8_t>((bit / 8 + j) % 64);
      shifts[lane * 8 + j] = static_cast<uint8_t>((bit % 8 + skip + j / 2 * k + j % 2 * 8) % 64);
    }
  }
  return {.bytes = _mm512_load_si512(bytes),
          .shifts = _mm512_load_si512(shifts),
          .mask = _mm512_set1_epi16(static_cast<int16_t>((1 << k) - 1))};
}

}  // namespace

DWS_TARGET_AVX512 GapOutput ReadGapsAvx512(const GapInput& input, uint64_t* scratch,
                                           uint16_t* positions) {
  const uint32_t k = input.k;
  const uint32_t skip = input.remainders % 8;
  // Four remainders begin at up to bit 4 + `skip` of a byte and must lie in 64 bits.
  if (4 + skip + 4 * k > 64) return ReadGapsPortable(input, scratch, positions);
  const uint64_t bits = SelectOnes(input, positions);
  if (bits == 0) return {};

  const RemainderCut cut = MakeRemainderCut(k, skip);
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(k));
  const __m512i ones = _mm512_set1_epi16(1);
  // The index i of each element.
  __m512i number = _mm512_set_epi16(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16,
                                    15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i last_lane = _mm512_set1_epi16(kGroup - 1);
  __m512i sum = _mm512_setzero_si512();        // of all earlier remainders, modulo 2^16
  __m512i exact_sum = _mm512_setzero_si512();  // in 16 parts of 32 bits
  const std::byte* at = input.payload + input.remainders / 8;
  uint64_t left = input.size_bytes - input.remainders / 8;
  for (uint32_t i = 0; i < input.count; i += kGroup) {
    const uint32_t count = input.count - i;
    const __mmask32 some = static_cast<__mmask32>(LowOnes(count < kGroup ? count : kGroup));
    const __m512i loaded = _mm512_maskz_loadu_epi8(LowOnes(left < 64 ? left : 64), at);
    const __m512i lanes = _mm512_permutexvar_epi8(cut.bytes, loaded);
    const __m512i remainders = _mm512_maskz_mov_epi16(
        some, _mm512_and_si512(_mm512_multishift_epi64_epi8(cut.shifts, lanes), cut.mask));
    exact_sum = _mm512_add_epi32(exact_sum, _mm512_madd_epi16(remainders, ones));
    const __m512i sums = _mm512_add_epi16(PrefixSums(remainders), sum);
    sum = _mm512_permutexvar_epi16(last_lane, sums);
    const __m512i bits_before = _mm512_maskz_loadu_epi16(some, positions + i);
    const __m512i zeros = _mm512_sub_epi16(bits_before, number);
    const __m512i position =
        _mm512_add_epi16(_mm512_add_epi16(_mm512_sll_epi16(zeros, shift), sums), number);
    _mm512_mask_storeu_epi16(positions + i, some, position);
    number = _mm512_add_epi16(number, _mm512_set1_epi16(kGroup));
    const uint64_t used = uint64_t{kGroup} / 8 * k;
    at += used < left ? used : left;
    left -= used < left ? used : left;
  }
  const uint64_t last_number = input.count - 1;
  const uint64_t zeros = bits - 1 - last_number;
  const uint64_t remainders = static_cast<uint64_t>(_mm512_reduce_add_epi64(
      _mm512_add_epi64(_mm512_and_si512(exact_sum, _mm512_set1_epi64(0xFFFFFFFF)),
                       _mm512_srli_epi64(exact_sum, 32))));
  return {.complete = true,
          .end = input.quotients + bits,
          .last = (zeros << k) + remainders + last_number};
}

DWS_TARGET_AVX512 void ReadSignsAvx512(const SignInput& input, uint64_t* steps) {
  const GapInput bits{.payload = input.payload, .size_bytes = input.size_bytes};
  const __m512i plus = _mm512_set1_epi64(static_cast<int64_t>(input.plus));
  const __m512i minus = _mm512_set1_epi64(static_cast<int64_t>(input.minus));
  for (uint32_t i = 0; i < input.count; i += 64) {
    uint64_t signs = LoadBits64(bits, input.begin + i);
    const uint32_t count = input.count - i < 64 ? input.count - i : 64;
    uint32_t j = 0;
    for (; j + 8 <= count; j += 8, signs >>= 8) {
      _mm512_storeu_si512(steps + i + j,
                          _mm512_mask_blend_epi64(static_cast<__mmask8>(signs), plus, minus));
    }
    if (j == count) continue;
    _mm512_mask_storeu_epi64(steps + i + j, static_cast<__mmask8>(LowOnes(count - j)),
                             _mm512_mask_blend_epi64(static_cast<__mmask8>(signs), plus, minus));
  }
}

}  // namespace dws::kernels
#endif
