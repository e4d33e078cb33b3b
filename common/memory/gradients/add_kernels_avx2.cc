// The compiler may not split wider vectors well: each operation names its halves or quarters.
#include "common/base/instruction_set.h"

#define DWS_ADD_CODE DWS_TARGET_AVX2 inline

#include "common/base/intrinsics.h"
#include "common/memory/gradients/add_loops.h"

#if defined(__x86_64__)

namespace dws {
namespace {

struct Avx2Lanes {
  struct Floats {
    __m256 low, high;
  };
  struct Doubles {
    __m256d quarter[4];
  };
  using Mask = __m256d;

  static DWS_ADD_CODE const float* AsFloats(const std::byte* from) {
    return reinterpret_cast<const float*>(from);
  }
  static DWS_ADD_CODE float* AsFloats(std::byte* to) { return reinterpret_cast<float*>(to); }
  static DWS_ADD_CODE double* AsDoubles(std::byte* to) { return reinterpret_cast<double*>(to); }

  static DWS_ADD_CODE Floats Load(const std::byte* from) {
    return {_mm256_loadu_ps(AsFloats(from)), _mm256_loadu_ps(AsFloats(from + 32))};
  }
  static DWS_ADD_CODE __m256 WidenBf16(__m128i halves) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  static DWS_ADD_CODE Floats LoadBf16(const std::byte* from) {
    return {WidenBf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))),
            WidenBf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16)))};
  }
  static DWS_ADD_CODE Doubles LoadDoubles(const std::byte* from) {
    Doubles values;
    for (size_t i = 0; i < 4; ++i) {
      values.quarter[i] = _mm256_loadu_pd(reinterpret_cast<const double*>(from + 32 * i));
    }
    return values;
  }
  static DWS_ADD_CODE void Store(std::byte* to, const Floats& values) {
    _mm256_store_ps(AsFloats(to), values.low);
    _mm256_store_ps(AsFloats(to + 32), values.high);
  }
  static DWS_ADD_CODE void Store(std::byte* to, const Doubles& values) {
    for (size_t i = 0; i < 4; ++i) _mm256_store_pd(AsDoubles(to + 32 * i), values.quarter[i]);
  }
  static DWS_ADD_CODE void Stream(std::byte* to, const Floats& values) {
    _mm256_stream_ps(AsFloats(to), values.low);
    _mm256_stream_ps(AsFloats(to + 32), values.high);
  }
  static DWS_ADD_CODE void Stream(std::byte* to, const Doubles& values) {
    for (size_t i = 0; i < 4; ++i) _mm256_stream_pd(AsDoubles(to + 32 * i), values.quarter[i]);
  }
  static DWS_ADD_CODE void EndStream() { _mm_sfence(); }

  static DWS_ADD_CODE Doubles Zeros() {
    const __m256d zero = _mm256_setzero_pd();
    return {{zero, zero, zero, zero}};
  }
  static DWS_ADD_CODE Floats Add(const Floats& a, const Floats& b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
  }
  static DWS_ADD_CODE Doubles Add(Doubles a, const Doubles& b) {
    for (size_t i = 0; i < 4; ++i) a.quarter[i] = _mm256_add_pd(a.quarter[i], b.quarter[i]);
    return a;
  }
  static DWS_ADD_CODE Doubles Subtract(Doubles a, const Doubles& b) {
    for (size_t i = 0; i < 4; ++i) a.quarter[i] = _mm256_sub_pd(a.quarter[i], b.quarter[i]);
    return a;
  }
  static DWS_ADD_CODE Doubles Square(Doubles a) {
    for (__m256d& quarter : a.quarter) quarter = _mm256_mul_pd(quarter, quarter);
    return a;
  }
  static DWS_ADD_CODE Doubles Widen(const Floats& values) {
    return {{_mm256_cvtps_pd(_mm256_castps256_ps128(values.low)),
             _mm256_cvtps_pd(_mm256_extractf128_ps(values.low, 1)),
             _mm256_cvtps_pd(_mm256_castps256_ps128(values.high)),
             _mm256_cvtps_pd(_mm256_extractf128_ps(values.high, 1))}};
  }
  static DWS_ADD_CODE Floats Narrow(const Doubles& values) {
    const __m256d* quarter = values.quarter;
    return {_mm256_set_m128(_mm256_cvtpd_ps(quarter[1]), _mm256_cvtpd_ps(quarter[0])),
            _mm256_set_m128(_mm256_cvtpd_ps(quarter[3]), _mm256_cvtpd_ps(quarter[2]))};
  }

  static DWS_ADD_CODE Mask None() { return _mm256_setzero_pd(); }
  static DWS_ADD_CODE Mask Or(Mask a, Mask b) { return _mm256_or_pd(a, b); }
  static DWS_ADD_CODE bool Any(Mask mask) { return _mm256_movemask_pd(mask) != 0; }
  static DWS_ADD_CODE Mask Differ(const Doubles& a, const Doubles& b) {
    Mask differ = None();
    for (size_t i = 0; i < 4; ++i) {
      differ = Or(differ, _mm256_cmp_pd(a.quarter[i], b.quarter[i], _CMP_NEQ_OQ));
    }
    return differ;
  }
};

}  // namespace

const AddKernels kAddKernelsAvx2 = kKernels<Avx2Lanes>;

}  // namespace dws

#endif
