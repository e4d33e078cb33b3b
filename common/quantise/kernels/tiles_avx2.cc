// Eight lanes at a time. Each function carries the target: the rest of the program stays fit for
// any processor.
#include "common/base/instruction_set.h"

#define DWS_QUANTISE_CODE DWS_TARGET_AVX2 static inline

#include "common/base/intrinsics.h"
#include "common/quantise/kernels/jobs.h"

#if defined(__x86_64__)
#include "common/quantise/kernels/largest.h"

namespace dws::quantise::kernels {
namespace {

struct EightLanes {
  static constexpr uint32_t kWidth = 8;
  using Floats = __m256;
  using Words = __m256i;

  DWS_TARGET_AVX2 static Words Bits(Floats value) { return _mm256_castps_si256(value); }
  DWS_TARGET_AVX2 static Floats FromBits(Words bits) { return _mm256_castsi256_ps(bits); }
  DWS_TARGET_AVX2 static Floats Add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  DWS_TARGET_AVX2 static Floats Multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  DWS_TARGET_AVX2 static Floats Divide(Floats a, Floats b) { return _mm256_div_ps(a, b); }
  DWS_TARGET_AVX2 static Floats Load(const std::byte* elements) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(elements));
    return FromBits(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  DWS_TARGET_AVX2 static Floats LoadFloats(const float* values) { return _mm256_loadu_ps(values); }
  DWS_TARGET_AVX2 static Floats Same(float value) { return _mm256_set1_ps(value); }
  DWS_TARGET_AVX2 static Words Same(uint32_t value) {
    return _mm256_set1_epi32(static_cast<int>(value));
  }
  DWS_TARGET_AVX2 static Words And(Words a, Words b) { return _mm256_and_si256(a, b); }
  DWS_TARGET_AVX2 static Words Or(Words a, Words b) { return _mm256_or_si256(a, b); }
  DWS_TARGET_AVX2 static Words Xor(Words a, Words b) { return _mm256_xor_si256(a, b); }
  DWS_TARGET_AVX2 static Words Plus(Words a, Words b) { return _mm256_add_epi32(a, b); }
  DWS_TARGET_AVX2 static Words Minus(Words a, Words b) { return _mm256_sub_epi32(a, b); }
  template <uint32_t kBits>
  DWS_TARGET_AVX2 static Words Right(Words a) {
    return _mm256_srli_epi32(a, kBits);
  }
  DWS_TARGET_AVX2 static Words SignMask(Words a) { return _mm256_srai_epi32(a, 31); }
  DWS_TARGET_AVX2 static Words Least(Words a, Words b) { return _mm256_min_epu32(a, b); }
  DWS_TARGET_AVX2 static Words SelectLess(Words a, Words b, Words yes, Words no) {
    return _mm256_blendv_epi8(no, yes, _mm256_cmpgt_epi32(b, a));
  }
  // Codes are at most 255: saturation changes none.
  DWS_TARGET_AVX2 static __m128i Narrow(Words codes) {
    const __m128i halves =
        _mm_packus_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
    return _mm_packus_epi16(halves, halves);
  }
  DWS_TARGET_AVX2 static void StoreBytes(Words codes, std::byte* to) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), Narrow(codes));
  }
  DWS_TARGET_AVX2 static void StoreHalfBytes(Words codes, std::byte* to) {
    const __m128i pairs = _mm_maddubs_epi16(Narrow(codes), _mm_set1_epi16(0x1001));
    StoreLe<int32_t>(to, _mm_cvtsi128_si32(_mm_packus_epi16(pairs, pairs)));
  }
  DWS_TARGET_AVX2 static uint32_t AbsMax(const std::byte* elements, uint64_t count) {
    const __m256i mask = _mm256_set1_epi16(0x7FFF);
    __m256i most = _mm256_setzero_si256();
    uint64_t done = 0;
    for (; done + 16 <= count; done += 16) {
      const __m256i bits =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(elements + done * 2));
      most = _mm256_max_epu16(most, _mm256_and_si256(bits, mask));
    }
    return std::max(LargestOf(most), OneLane::AbsMax(elements + done * 2, count - done));
  }
};

}  // namespace

DWS_TARGET_AVX2 void QuantiseTilesAvx2(Rule rule, const TileJob& job) {
  Run<EightLanes>(rule, job);
}

DWS_TARGET_AVX2 void QuantiseElementsAvx2(Rule rule, const ElementJob& job) {
  Run<EightLanes>(rule, job);
}

DWS_TARGET_AVX2 uint16_t AbsMaxAvx2(const std::byte* elements, uint64_t count) {
  return static_cast<uint16_t>(EightLanes::AbsMax(elements, count));
}

}  // namespace dws::quantise::kernels

#endif
