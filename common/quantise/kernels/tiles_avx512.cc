// Sixteen lanes at a time: see tiles_avx2.cc.
#include "common/base/instruction_set.h"

#define DWS_QUANTISE_CODE DWS_TARGET_AVX512 static inline

#include "common/base/intrinsics.h"
#include "common/quantise/kernels/jobs.h"

#if defined(__x86_64__)
#include "common/quantise/kernels/largest.h"

namespace dws::quantise::kernels {
namespace {

struct SixteenLanes {
  static constexpr uint32_t kWidth = 16;
  using Floats = __m512;
  using Words = __m512i;

  DWS_TARGET_AVX512 static Words Bits(Floats value) { return _mm512_castps_si512(value); }
  DWS_TARGET_AVX512 static Floats FromBits(Words bits) { return _mm512_castsi512_ps(bits); }
  DWS_TARGET_AVX512 static Floats Add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  DWS_TARGET_AVX512 static Floats Multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  DWS_TARGET_AVX512 static Floats Divide(Floats a, Floats b) { return _mm512_div_ps(a, b); }
  DWS_TARGET_AVX512 static Floats Load(const std::byte* elements) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(elements));
    return FromBits(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  DWS_TARGET_AVX512 static Floats LoadFloats(const float* values) {
    return _mm512_loadu_ps(values);
  }
  DWS_TARGET_AVX512 static Floats Same(float value) { return _mm512_set1_ps(value); }
  DWS_TARGET_AVX512 static Words Same(uint32_t value) {
    return _mm512_set1_epi32(static_cast<int>(value));
  }
  DWS_TARGET_AVX512 static Words And(Words a, Words b) { return _mm512_and_si512(a, b); }
  DWS_TARGET_AVX512 static Words Or(Words a, Words b) { return _mm512_or_si512(a, b); }
  DWS_TARGET_AVX512 static Words Xor(Words a, Words b) { return _mm512_xor_si512(a, b); }
  DWS_TARGET_AVX512 static Words Plus(Words a, Words b) { return _mm512_add_epi32(a, b); }
  DWS_TARGET_AVX512 static Words Minus(Words a, Words b) { return _mm512_sub_epi32(a, b); }
  template <uint32_t kBits>
  DWS_TARGET_AVX512 static Words Right(Words a) {
    return _mm512_srli_epi32(a, kBits);
  }
  DWS_TARGET_AVX512 static Words SignMask(Words a) { return _mm512_srai_epi32(a, 31); }
  DWS_TARGET_AVX512 static Words Least(Words a, Words b) { return _mm512_min_epu32(a, b); }
  DWS_TARGET_AVX512 static Words SelectLess(Words a, Words b, Words yes, Words no) {
    return _mm512_mask_blend_epi32(_mm512_cmplt_epu32_mask(a, b), no, yes);
  }
  DWS_TARGET_AVX512 static void StoreBytes(Words codes, std::byte* to) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(codes));
  }
  DWS_TARGET_AVX512 static void StoreHalfBytes(Words codes, std::byte* to) {
    const __m128i pairs = _mm_maddubs_epi16(_mm512_cvtepi32_epi8(codes), _mm_set1_epi16(0x1001));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(pairs, pairs));
  }
  DWS_TARGET_AVX512 static uint32_t AbsMax(const std::byte* elements, uint64_t count) {
    const __m256i mask = _mm256_set1_epi16(0x7FFF);
    __m256i most = _mm256_setzero_si256();
    uint64_t done = 0;
    if (count >= 32) {
      __m512i wide = _mm512_setzero_si512();
      for (; done + 32 <= count; done += 32) {
        const __m512i bits = _mm512_loadu_si512(elements + done * 2);
        wide = _mm512_max_epu16(wide, _mm512_and_si512(bits, _mm512_set1_epi16(0x7FFF)));
      }
      most = _mm256_max_epu16(_mm512_castsi512_si256(wide), _mm512_extracti64x4_epi64(wide, 1));
    }
    if (done + 16 <= count) {
      const __m256i bits =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(elements + done * 2));
      most = _mm256_max_epu16(most, _mm256_and_si256(bits, mask));
      done += 16;
    }
    return std::max(LargestOf(most), OneLane::AbsMax(elements + done * 2, count - done));
  }
};

}  // namespace

DWS_TARGET_AVX512 void QuantiseTilesAvx512(Rule rule, const TileJob& job) {
  Run<SixteenLanes>(rule, job);
}

DWS_TARGET_AVX512 void QuantiseElementsAvx512(Rule rule, const ElementJob& job) {
  Run<SixteenLanes>(rule, job);
}

DWS_TARGET_AVX512 uint16_t AbsMaxAvx512(const std::byte* elements, uint64_t count) {
  return static_cast<uint16_t>(SixteenLanes::AbsMax(elements, count));
}

}  // namespace dws::quantise::kernels

#endif
