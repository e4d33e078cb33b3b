// Two vectors, 64 elements, at a time: compare with each threshold, and let PEXT and PDEP move the
// marks between positions and ranks. Every class keeps its running rank in a register.
#include "common/delta/kernels/class_scan.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace dws::kernels::internal {
namespace {

using ScanVector = __m512i;

template <bool kWide>
struct Group {
  __m512i low;
  __m512i high;  // unused for 1-byte elements
};

template <bool kWide>
DWS_TARGET_AVX512 static inline Group<kWide> LoadGroup(const std::byte* at, uint64_t valid) {
  Group<kWide> group;
  if constexpr (kWide) {
    const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
    group.low = _mm512_maskz_loadu_epi16(static_cast<__mmask32>(valid), at);
    group.high = _mm512_maskz_loadu_epi16(static_cast<__mmask32>(valid >> 32), at + 64);
    group.low = _mm512_and_si512(group.low, magnitude);
    group.high = _mm512_and_si512(group.high, magnitude);
  } else {
    group.low = _mm512_and_si512(_mm512_maskz_loadu_epi8(valid, at), _mm512_set1_epi8(0x7F));
  }
  return group;
}

template <bool kWide>
DWS_TARGET_AVX512 static inline uint64_t Below(const Group<kWide>& group, __m512i threshold) {
  if constexpr (kWide) {
    return static_cast<uint64_t>(_mm512_cmplt_epu16_mask(group.low, threshold)) |
           static_cast<uint64_t>(_mm512_cmplt_epu16_mask(group.high, threshold)) << 32;
  } else {
    return _mm512_cmplt_epu8_mask(group.low, threshold);
  }
}

template <bool kWide>
DWS_TARGET_AVX512 static inline __m512i Threshold(uint8_t byte) {
  if constexpr (kWide) return _mm512_set1_epi16(static_cast<int16_t>(byte << 7));
  return _mm512_set1_epi8(static_cast<int8_t>(byte));
}

#define DWS_SCAN_TARGET DWS_TARGET_AVX512
#include "common/delta/kernels/class_scan_loops.inc"

}  // namespace

bool SplitByClassAvx512(const ClassScanInput& input, const BlockMask& mask, ClassMarks& marks) {
  return SplitAny(input, mask, marks);
}
bool MergeClassesAvx512(const ClassScanInput& input, ClassMarks& marks, BlockMask& mask) {
  return MergeAny(input, marks, mask);
}

}  // namespace dws::kernels::internal

#else

namespace dws::kernels::internal {
bool SplitByClassAvx512(const ClassScanInput&, const BlockMask&, ClassMarks&) { return false; }
bool MergeClassesAvx512(const ClassScanInput&, ClassMarks&, BlockMask&) { return false; }
}  // namespace dws::kernels::internal

#endif
