// Masks of 8 bits are collected, so that a sticky flag costs no vector register.
#include "common/base/instruction_set.h"

#define DWS_ADD_CODE DWS_TARGET_AVX512 inline

#include "common/base/intrinsics.h"
#include "common/memory/gradients/add_loops.h"

#if defined(__x86_64__)

namespace dws {
namespace {

struct Avx512Lanes {
  using Floats = __m512;
  struct Doubles {
    __m512d low, high;
  };
  using Mask = uint32_t;

  static DWS_ADD_CODE Floats Load(const std::byte* from) { return _mm512_loadu_ps(from); }
  static DWS_ADD_CODE Floats LoadBf16(const std::byte* from) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  static DWS_ADD_CODE Doubles LoadDoubles(const std::byte* from) {
    return {_mm512_loadu_pd(from), _mm512_loadu_pd(from + 64)};
  }
  static DWS_ADD_CODE void Store(std::byte* to, Floats values) { _mm512_store_ps(to, values); }
  static DWS_ADD_CODE void Store(std::byte* to, const Doubles& values) {
    _mm512_store_pd(to, values.low);
    _mm512_store_pd(to + 64, values.high);
  }
  static DWS_ADD_CODE void Stream(std::byte* to, Floats values) {
    _mm512_stream_ps(reinterpret_cast<float*>(to), values);
  }
  static DWS_ADD_CODE void Stream(std::byte* to, const Doubles& values) {
    _mm512_stream_pd(reinterpret_cast<double*>(to), values.low);
    _mm512_stream_pd(reinterpret_cast<double*>(to + 64), values.high);
  }
  static DWS_ADD_CODE void EndStream() { _mm_sfence(); }

  static DWS_ADD_CODE Doubles Zeros() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
  static DWS_ADD_CODE Floats Add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static DWS_ADD_CODE Doubles Add(const Doubles& a, const Doubles& b) {
    return {_mm512_add_pd(a.low, b.low), _mm512_add_pd(a.high, b.high)};
  }
  static DWS_ADD_CODE Doubles Subtract(const Doubles& a, const Doubles& b) {
    return {_mm512_sub_pd(a.low, b.low), _mm512_sub_pd(a.high, b.high)};
  }
  static DWS_ADD_CODE Doubles Square(const Doubles& a) {
    return {_mm512_mul_pd(a.low, a.low), _mm512_mul_pd(a.high, a.high)};
  }
  static DWS_ADD_CODE Doubles Widen(Floats values) {
    return {_mm512_cvtps_pd(_mm512_castps512_ps256(values)),
            _mm512_cvtps_pd(_mm512_extractf32x8_ps(values, 1))};
  }
  static DWS_ADD_CODE Floats Narrow(const Doubles& values) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(values.low)),
                              _mm512_cvtpd_ps(values.high), 1);
  }

  static DWS_ADD_CODE Mask None() { return 0; }
  static DWS_ADD_CODE Mask Or(Mask a, Mask b) { return a | b; }
  static DWS_ADD_CODE bool Any(Mask mask) { return mask != 0; }
  static DWS_ADD_CODE Mask Differ(const Doubles& a, const Doubles& b) {
    return Mask{_mm512_cmp_pd_mask(a.low, b.low, _CMP_NEQ_OQ)} |
           Mask{_mm512_cmp_pd_mask(a.high, b.high, _CMP_NEQ_OQ)};
  }
};

}  // namespace

const AddKernels kAddKernelsAvx512 = kKernels<Avx512Lanes>;

}  // namespace dws

#endif
