// Compares a group of 64 elements with each threshold. AVX2 compares signed numbers; that is
// correct here, because magnitudes have no sign bit.
#include "common/delta/kernels/class_index.h"

#if defined(__x86_64__)
#include <cstring>

#include "common/base/intrinsics.h"

namespace dws::kernels::internal {
namespace {

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

// One bit for each of 32 elements in two vectors of 16.
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

// Stores the members of class `c` in group number `group`.
DWS_TARGET_AVX2 inline void StoreClass(uint64_t members, uint32_t group, size_t c,
                                       ClassIndex& index) {
  index.members[group][c] = members;
  index.ranks[c][group] = static_cast<uint16_t>(index.sizes[c]);
  index.sizes[c] += static_cast<uint32_t>(_mm_popcnt_u64(members));
}

template <bool kWide>
DWS_TARGET_AVX2 void Index(const ClassIndexInput& input, ClassIndex& index) {
  constexpr uint32_t kGroupBytes = kWide ? 128 : 64;
  const size_t last_class = input.classes->threshold_count;
  const std::byte* at = input.elements;
  for (uint32_t i = 0; i < input.count; i += 64, at += kGroupBytes) {
    const uint64_t valid =
        input.count - i >= 64 ? ~uint64_t{0} : (uint64_t{1} << (input.count - i)) - 1;
    const Group<kWide> group = LoadGroup<kWide>(at, valid);
    uint64_t below_before = 0;
    for (size_t c = 0; c < last_class; ++c) {
      const uint64_t below =
          Below<kWide>(group, Threshold<kWide>(input.classes->thresholds[c])) & valid;
      StoreClass(below & ~below_before, i / 64, c, index);
      below_before = below;
    }
    StoreClass(valid & ~below_before, i / 64, last_class, index);
  }
}

}  // namespace

void IndexClassesAvx2(const ClassIndexInput& input, ClassIndex& index) {
  if (input.element_bytes == 2) {
    Index<true>(input, index);
  } else {
    Index<false>(input, index);
  }
}

DWS_TARGET_AVX2 void RankElementsAvx2(const ClassIndex& index, const uint16_t* positions,
                                      const uint8_t* classes, uint32_t count, uint16_t* ranks) {
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t group = positions[i] / 64;
    const uint64_t before = _bzhi_u64(index.members[group][classes[i]], positions[i] % 64);
    ranks[i] = static_cast<uint16_t>(index.ranks[classes[i]][group] +
                                     static_cast<uint32_t>(_mm_popcnt_u64(before)));
  }
}

}  // namespace dws::kernels::internal
#endif
