// As class_scan_avx512.cc with vectors of half the size; magnitudes have no sign, so the signed
// comparison is right.
#include "common/delta/kernels/class_scan.h"

#if defined(__x86_64__)
#include <cstring>

#include "common/base/intrinsics.h"

namespace dws::kernels::internal {
namespace {

using ScanVector = __m256i;

template <bool kWide>
struct Group {
  __m256i parts[kWide ? 4 : 2];
};

template <bool kWide>
DWS_TARGET_AVX2 static inline Group<kWide> LoadGroup(const std::byte* at, uint64_t valid) {
  constexpr size_t kBytes = kWide ? 128 : 64;
  alignas(32) std::byte tail[kBytes];
  if (valid != ~uint64_t{0}) {  // the last group of a block
    std::memset(tail, 0, kBytes);
    std::memcpy(tail, at, static_cast<size_t>(_mm_popcnt_u64(valid)) * (kWide ? 2 : 1));
    at = tail;
  }
  const __m256i magnitude = kWide ? _mm256_set1_epi16(0x7FFF) : _mm256_set1_epi8(0x7F);
  Group<kWide> group;
  for (size_t i = 0; i < kBytes / 32; ++i) {
    group.parts[i] = _mm256_and_si256(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + i * 32)), magnitude);
  }
  return group;
}

// Bits of 32 elements that lie in two vectors of 16.
DWS_TARGET_AVX2 static inline uint64_t Bits32(__m256i first, __m256i second) {
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi16(first, second), 0xD8);
  return static_cast<uint32_t>(_mm256_movemask_epi8(packed));
}

template <bool kWide>
DWS_TARGET_AVX2 static inline uint64_t Below(const Group<kWide>& group, __m256i threshold) {
  if constexpr (kWide) {
    return Bits32(_mm256_cmpgt_epi16(threshold, group.parts[0]),
                  _mm256_cmpgt_epi16(threshold, group.parts[1])) |
           Bits32(_mm256_cmpgt_epi16(threshold, group.parts[2]),
                  _mm256_cmpgt_epi16(threshold, group.parts[3]))
               << 32;
  } else {
    const auto low =
        static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpgt_epi8(threshold, group.parts[0])));
    const auto high =
        static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpgt_epi8(threshold, group.parts[1])));
    return uint64_t{low} | uint64_t{high} << 32;
  }
}

template <bool kWide>
DWS_TARGET_AVX2 static inline __m256i Threshold(uint8_t byte) {
  if constexpr (kWide) return _mm256_set1_epi16(static_cast<int16_t>(byte << 7));
  return _mm256_set1_epi8(static_cast<int8_t>(byte));
}

#define DWS_SCAN_TARGET DWS_TARGET_AVX2
#include "common/delta/kernels/class_scan_loops.inc"

}  // namespace

bool SplitByClassAvx2(const ClassScanInput& input, const BlockMask& mask, ClassMarks& marks) {
  return SplitAny(input, mask, marks);
}
bool MergeClassesAvx2(const ClassScanInput& input, ClassMarks& marks, BlockMask& mask) {
  return MergeAny(input, marks, mask);
}

}  // namespace dws::kernels::internal

#else

namespace dws::kernels::internal {
bool SplitByClassAvx2(const ClassScanInput&, const BlockMask&, ClassMarks&) { return false; }
bool MergeClassesAvx2(const ClassScanInput&, ClassMarks&, BlockMask&) { return false; }
}  // namespace dws::kernels::internal

#endif
