// Two vectors, 64 elements, at a time: compare with each threshold, and let PEXT and PDEP move the
// marks between positions and ranks. Every class keeps its running rank in a register.
#include "common/delta/kernels/class_scan.h"

#if defined(__x86_64__)
#include "common/base/intrinsics.h"

namespace dws::kernels::internal {
namespace {

using ScanVector = __m512i;

// The magnitude bytes of 64 elements, whatever their width: one comparison gives 64 bits.
template <bool kWide>
struct Group {
  __m512i magnitudes;
};

template <bool kWide>
DWS_TARGET_AVX512 static inline Group<kWide> LoadGroup(const std::byte* at, uint64_t valid) {
  if constexpr (kWide) {
    alignas(64) static constexpr uint8_t kEvenBytes[64] = {
        0,  2,  4,   6,   8,   10,  12,  14,  16,  18,  20,  22,  24,  26,  28,  30,
        32, 34, 36,  38,  40,  42,  44,  46,  48,  50,  52,  54,  56,  58,  60,  62,
        64, 66, 68,  70,  72,  74,  76,  78,  80,  82,  84,  86,  88,  90,  92,  94,
        96, 98, 100, 102, 104, 106, 108, 110, 112, 114, 116, 118, 120, 122, 124, 126};
    const __m512i low = _mm512_maskz_loadu_epi16(static_cast<__mmask32>(valid), at);
    const __m512i high = _mm512_maskz_loadu_epi16(static_cast<__mmask32>(valid >> 32), at + 64);
    return {_mm512_permutex2var_epi8(_mm512_srli_epi16(low, 7), _mm512_load_si512(kEvenBytes),
                                     _mm512_srli_epi16(high, 7))};
  } else {
    return {_mm512_and_si512(_mm512_maskz_loadu_epi8(valid, at), _mm512_set1_epi8(0x7F))};
  }
}

template <bool kWide>
DWS_TARGET_AVX512 static inline uint64_t Below(const Group<kWide>& group, __m512i threshold) {
  return _mm512_cmplt_epu8_mask(group.magnitudes, threshold);
}

template <bool kWide>
DWS_TARGET_AVX512 static inline __m512i Threshold(uint8_t byte) {
  return _mm512_set1_epi8(static_cast<int8_t>(byte));
}

#define DWS_SCAN_TARGET DWS_TARGET_AVX512
#include "common/delta/kernels/class_scan_loops.inc"

}  // namespace

DWS_TARGET_AVX512 uint32_t ListMarksAvx512(const uint64_t* words, uint32_t size, uint64_t flip,
                                           uint16_t* numbers) {
  const __m512i step = _mm512_set1_epi16(32);
  alignas(64) static constexpr uint16_t kFirst[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                                      11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                                                      22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
  __m512i number = _mm512_load_si512(kFirst);
  uint16_t* out = numbers;
  for (uint32_t base = 0; base < size; base += 64) {
    uint64_t word = words[base / 64] ^ flip;
    if (size - base < 64) word = _bzhi_u64(word, size - base);
    const auto low = static_cast<__mmask32>(word);
    const auto high = static_cast<__mmask32>(word >> 32);
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi16(low, number));
    out += _mm_popcnt_u32(low);
    number = _mm512_add_epi16(number, step);
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi16(high, number));
    out += _mm_popcnt_u32(high);
    number = _mm512_add_epi16(number, step);
  }
  return static_cast<uint32_t>(out - numbers);
}

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
uint32_t ListMarksAvx512(const uint64_t*, uint32_t, uint64_t, uint16_t*) {
  return 0;
}  // not called
}  // namespace dws::kernels::internal

#endif
