// Looks up a group's 64 magnitude bytes in a table of 256 bytes, each with the bit of one class.
// Transposing these 64 bytes of 8 bits gives 8 words of 64 bits, the members of every class, in one
// vector. Eight classes take as many steps as one.
#include "common/delta/kernels/class_index.h"

#if defined(__x86_64__)
#include "common/base/intrinsics.h"

namespace dws::kernels::internal {
namespace {

constexpr uint32_t kGroups = 4;      // groups whose ranks fill one vector
constexpr uint32_t kRankLanes = 32;  // ranks of a class in a vector

// The bit of each magnitude byte's class. Thresholds usually lie close together. Then all bytes
// below the first threshold have one class and all bytes from the last threshold on have another,
// and one table of 64 bytes is enough.
struct ClassBits {
  __m512i of[4];  // bytes 0-63, 64-127, ...; of near thresholds only of[0], the bytes from base on
  __m512i base;
  bool near = true;
};

DWS_TARGET_AVX512 inline ClassBits MakeClassBits(const ClassTable& table) {
  alignas(64) uint8_t numbers[64];
  for (uint32_t i = 0; i < 64; ++i) numbers[i] = static_cast<uint8_t>(i);
  ClassBits bits;
  uint32_t base = 0;
  if (table.threshold_count > 0) {
    base = table.thresholds[0] - 1U;
    bits.near = table.thresholds[table.threshold_count - 1U] - base < 64;
  }
  if (!bits.near) base = 0;
  bits.base = _mm512_set1_epi8(static_cast<int8_t>(base));
  for (uint32_t part = 0; part < 4; ++part) {
    // Bytes above 255 are not looked up.
    const __m512i bytes = _mm512_adds_epu8(_mm512_load_si512(numbers),
                                           _mm512_set1_epi8(static_cast<int8_t>(base + part * 64)));
    bits.of[part] = _mm512_set1_epi8(1);
    for (uint32_t c = 1; c <= table.threshold_count; ++c) {
      const __m512i threshold = _mm512_set1_epi8(static_cast<int8_t>(table.thresholds[c - 1]));
      bits.of[part] = _mm512_mask_mov_epi8(bits.of[part], _mm512_cmpge_epu8_mask(bytes, threshold),
                                           _mm512_set1_epi8(static_cast<int8_t>(1U << c)));
    }
  }
  return bits;
}

template <bool kNear>
DWS_TARGET_AVX512 inline __m512i LookUp(__m512i magnitudes, const ClassBits& bits) {
  if constexpr (kNear) {
    const __m512i number =
        _mm512_min_epu8(_mm512_subs_epu8(magnitudes, bits.base), _mm512_set1_epi8(63));
    return _mm512_permutexvar_epi8(number, bits.of[0]);
  } else {
    const __m512i low = _mm512_permutex2var_epi8(bits.of[0], magnitudes, bits.of[1]);
    const __m512i high = _mm512_permutex2var_epi8(bits.of[2], magnitudes, bits.of[3]);
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(magnitudes), low, high);
  }
}

// The magnitude bytes of a group whose elements are in `low`, or in `low` and `high`. Within each
// group of eight elements, the bytes are in reverse order.
template <bool kWide>
DWS_TARGET_AVX512 inline __m512i Magnitudes(__m512i low, __m512i high) {
  if constexpr (kWide) {
    alignas(64) static constexpr uint8_t kEvenBytes[64] = {
        14,  12,  10,  8,   6,   4,   2,  0,  30,  28,  26,  24,  22,  20,  18,  16,
        46,  44,  42,  40,  38,  36,  34, 32, 62,  60,  58,  56,  54,  52,  50,  48,
        78,  76,  74,  72,  70,  68,  66, 64, 94,  92,  90,  88,  86,  84,  82,  80,
        110, 108, 106, 104, 102, 100, 98, 96, 126, 124, 122, 120, 118, 116, 114, 112};
    return _mm512_permutex2var_epi8(_mm512_srli_epi16(low, 7), _mm512_load_si512(kEvenBytes),
                                    _mm512_srli_epi16(high, 7));
  } else {
    const __m512i reversed =
        _mm512_shuffle_epi8(low, _mm512_set4_epi32(0x08090A0B, 0x0C0D0E0F, 0x00010203, 0x04050607));
    return _mm512_and_si512(reversed, _mm512_set1_epi8(0x7F));
  }
}

// The lowest `count` of 64 bits set.
DWS_TARGET_AVX512 inline uint64_t FirstOnes(uint32_t count) {
  return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

// Eight words of 64 bits, the bits of each byte in reverse order.
DWS_TARGET_AVX512 inline __m512i ReverseInBytes(__m512i words) {
  return _mm512_gf2p8affine_epi64_epi8(
      words, _mm512_set1_epi64(static_cast<int64_t>(0x8040201008040201)), 0);
}

DWS_TARGET_AVX512 inline uint64_t ReverseInBytes(uint64_t word) {
  const __m128i words = _mm512_castsi512_si128(
      ReverseInBytes(_mm512_castsi128_si512(_mm_cvtsi64_si128(static_cast<int64_t>(word)))));
  return static_cast<uint64_t>(_mm_cvtsi128_si64(words));
}

// The members of every class among elements whose class bits are `class_bits`.
DWS_TARGET_AVX512 inline __m512i Members(__m512i class_bits) {
  alignas(64) static constexpr uint8_t kTransposed[64] = {
      0,  8,  16, 24, 32, 40, 48, 56, 1,  9,  17, 25, 33, 41, 49, 57, 2,  10, 18, 26, 34, 42,
      50, 58, 3,  11, 19, 27, 35, 43, 51, 59, 4,  12, 20, 28, 36, 44, 52, 60, 5,  13, 21, 29,
      37, 45, 53, 61, 6,  14, 22, 30, 38, 46, 54, 62, 7,  15, 23, 31, 39, 47, 55, 63};
  // For each group of eight elements: byte j of the product has bit j of each element, and the
  // lowest bit belongs to the last element.
  const __m512i transposed = _mm512_gf2p8affine_epi64_epi8(
      _mm512_set1_epi64(static_cast<int64_t>(0x8040201008040201)), class_bits, 0);
  return _mm512_permutexvar_epi8(_mm512_load_si512(kTransposed), transposed);
}

// Returns the bit of each element's class in group number `group`. The block has only a part of
// this group, or nothing of it; the bits of missing elements are 0.
template <bool kWide, bool kNear>
DWS_TARGET_AVX512 __m512i LoadPart(const ClassIndexInput& input, uint32_t group,
                                   const ClassBits& bits) {
  if (group * 64 >= input.count) return _mm512_setzero_si512();
  const uint64_t valid = FirstOnes(input.count - group * 64);
  const std::byte* const at = input.elements + size_t{group} * (kWide ? 128 : 64);
  __m512i low = _mm512_setzero_si512();
  __m512i high = _mm512_setzero_si512();
  if constexpr (kWide) {
    low = _mm512_maskz_loadu_epi16(static_cast<__mmask32>(valid), at);
    high = _mm512_maskz_loadu_epi16(static_cast<__mmask32>(valid >> 32), at + 64);
  } else {
    low = _mm512_maskz_loadu_epi8(valid, at);
  }
  return _mm512_maskz_mov_epi8(ReverseInBytes(valid),
                               LookUp<kNear>(Magnitudes<kWide>(low, high), bits));
}

// Transposes eight vectors of 8 words each: the first then has the first words, and so on.
DWS_TARGET_AVX512 inline void Transpose(__m512i (&rows)[8]) {
  __m512i pairs[8];
#pragma GCC unroll 4
  for (uint32_t i = 0; i < 4; ++i) {
    pairs[i] = _mm512_unpacklo_epi64(rows[2 * i], rows[2 * i + 1]);
    pairs[4 + i] = _mm512_unpackhi_epi64(rows[2 * i], rows[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (uint32_t odd = 0; odd < 2; ++odd) {
    const __m512i* const p = pairs + odd * 4;
    const __m512i even01 = _mm512_shuffle_i64x2(p[0], p[1], 0x88);
    const __m512i even23 = _mm512_shuffle_i64x2(p[2], p[3], 0x88);
    const __m512i odd01 = _mm512_shuffle_i64x2(p[0], p[1], 0xDD);
    const __m512i odd23 = _mm512_shuffle_i64x2(p[2], p[3], 0xDD);
    rows[odd] = _mm512_shuffle_i64x2(even01, even23, 0x88);
    rows[odd + 2] = _mm512_shuffle_i64x2(odd01, odd23, 0x88);
    rows[odd + 4] = _mm512_shuffle_i64x2(even01, even23, 0xDD);
    rows[odd + 6] = _mm512_shuffle_i64x2(odd01, odd23, 0xDD);
  }
}

template <bool kWide, bool kNear>
DWS_TARGET_AVX512 void Index(const ClassIndexInput& input, const ClassBits& bits,
                             ClassIndex& index) {
  const __m512i marked_classes = _mm512_set1_epi8(static_cast<int8_t>(input.marked_classes));
  __m512i sizes = _mm512_setzero_si512();  // of all classes, up to this group
  for (uint32_t begin = 0; begin * 64 < input.count; begin += kRankLanes) {
    __m512i ranks[kRankLanes / kGroups];
    for (uint32_t row = 0; row < kRankLanes / kGroups; ++row) {
      const uint32_t first = begin + row * kGroups;
      const std::byte* const at = input.elements + size_t{first} * (kWide ? 128 : 64);
      const bool whole = (first + kGroups) * 64 <= input.count;
      ranks[row] = _mm512_setzero_si512();
#pragma GCC unroll 4
      for (uint32_t g = 0; g < kGroups; ++g) {
        __m512i class_bits;
        if (whole) [[likely]] {
          const std::byte* const from = at + size_t{g} * (kWide ? 128 : 64);
          // Perhaps beyond the memory: only a hint.
          const auto* const ahead =
              reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(from) + kIndexAheadBytes);
          _mm_prefetch(ahead, _MM_HINT_T1);
          if constexpr (kWide) _mm_prefetch(ahead + 64, _MM_HINT_T1);
          class_bits = LookUp<kNear>(
              Magnitudes<kWide>(_mm512_loadu_si512(from),
                                kWide ? _mm512_loadu_si512(from + 64) : _mm512_setzero_si512()),
              bits);
        } else {
          class_bits = LoadPart<kWide, kNear>(input, first + g, bits);
        }
        if (input.marked != nullptr) {
          input.marked[first + g] = _mm512_test_epi8_mask(class_bits, marked_classes);
        }
        const __m512i members = Members(class_bits);
        _mm512_storeu_si512(index.members[first + g].data(), members);
        ranks[row] = _mm512_or_si512(ranks[row], _mm512_slli_epi64(sizes, g * 16));
        sizes = _mm512_add_epi64(sizes, _mm512_popcnt_epi64(members));
      }
    }
    Transpose(ranks);
#pragma GCC unroll 8
    for (uint32_t c = 0; c < kClassesMax; ++c) {
      _mm512_store_si512(index.ranks[c].data() + begin, ranks[c]);
    }
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(index.sizes.data()), _mm512_cvtepi64_epi32(sizes));
  if (input.marked == nullptr) return;
  for (uint32_t group = 0; group * 64 < input.count; group += 8) {
    uint64_t* const words = input.marked + group;
    _mm512_storeu_si512(words, ReverseInBytes(_mm512_loadu_si512(words)));
  }
}

// How many of the 32 `ranks` are at most `rank`.
DWS_TARGET_AVX512 inline uint32_t CountUpTo(__m512i ranks, __m512i rank) {
  return static_cast<uint32_t>(_mm_popcnt_u32(_mm512_cmple_epu16_mask(ranks, rank)));
}

}  // namespace

DWS_TARGET_AVX512 void IndexClassesAvx512(const ClassIndexInput& input, ClassIndex& index) {
  const ClassBits bits = MakeClassBits(*input.classes);
  if (input.element_bytes == 2) {
    return bits.near ? Index<true, true>(input, bits, index)
                     : Index<true, false>(input, bits, index);
  }
  return bits.near ? Index<false, true>(input, bits, index)
                   : Index<false, false>(input, bits, index);
}

DWS_TARGET_AVX512 void SortByClassAvx512(const uint8_t* classes, const uint16_t* numbers,
                                         uint32_t count, size_t class_count, uint32_t stride,
                                         uint16_t* sorted, uint32_t* sizes) {
  for (size_t c = 0; c < class_count; ++c) {
    const __m256i wanted = _mm256_set1_epi8(static_cast<int8_t>(c));
    uint16_t* const begin = sorted + c * stride;
    uint16_t* out = begin;
    for (uint32_t i = 0; i < count; i += kRankLanes) {
      const auto valid = static_cast<__mmask32>(FirstOnes(count - i));
      const __mmask32 mine =
          _mm256_mask_cmpeq_epi8_mask(valid, _mm256_maskz_loadu_epi8(valid, classes + i), wanted);
      _mm512_storeu_si512(
          out, _mm512_maskz_compress_epi16(mine, _mm512_maskz_loadu_epi16(valid, numbers + i)));
      out += _mm_popcnt_u32(mine);
    }
    sizes[c] = static_cast<uint32_t>(out - begin);
  }
}

// Two comparisons find the group of a rank among 32 times 32 groups.
DWS_TARGET_AVX512 void FlipRanksAvx512(const ClassIndex& index, size_t c, const uint16_t* ranks,
                                       uint32_t count, uint64_t* mask, FetchAhead& ahead) {
  static_assert(kMaskWords == kRankLanes * kRankLanes);
  if (count == 0) return;
  const uint16_t* const groups = index.ranks[c].data();
  alignas(64) uint16_t firsts[kRankLanes];  // of every 32nd group
  for (uint32_t i = 0; i < kRankLanes; ++i) firsts[i] = groups[size_t{i} * kRankLanes];
  const __m512i first_ranks = _mm512_load_si512(firsts);
  FetchAhead left = ahead;  // a copy that stays in registers
  for (uint32_t i = 0; i < count; ++i) {
    left.Fetch(kLinesARank);
    const __m512i rank = _mm512_set1_epi16(static_cast<int16_t>(ranks[i]));
    const uint32_t begin = (CountUpTo(first_ranks, rank) - 1) * kRankLanes;
    const uint32_t group = begin + CountUpTo(_mm512_load_si512(groups + begin), rank) - 1;
    const uint64_t bit = uint64_t{1} << (ranks[i] - groups[group]);
    mask[group] ^= _pdep_u64(bit, index.members[group][c]);
  }
  ahead = left;
}

DWS_TARGET_AVX512 uint32_t ListOnesAvx512(const uint64_t* words, uint32_t size, uint16_t* numbers) {
  alignas(64) static constexpr uint8_t kNumbers[64] = {
      0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
      22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
      44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
  const __m512i all = _mm512_load_si512(kNumbers);
  uint16_t* out = numbers;
  for (uint32_t begin = 0; begin < size; begin += 64 * 64) {
    const uint64_t* const at = words + begin / 64;
    const uint32_t word_count = (size - begin + 63) / 64;
    const uint64_t valid = FirstOnes(word_count);
    uint64_t filled = 0;  // words that are not 0
    for (uint32_t i = 0; i < 8; ++i) {
      const auto mask = static_cast<__mmask8>(valid >> (i * 8));
      const __m512i eight = _mm512_maskz_loadu_epi64(mask, at + size_t{i} * 8);
      filled |= uint64_t{_mm512_test_epi64_mask(eight, eight)} << (i * 8);
    }
    for (; filled != 0; filled = _blsr_u64(filled)) {
      const auto i = static_cast<uint32_t>(_tzcnt_u64(filled));
      const uint32_t first = begin + i * 64;
      const uint64_t word = at[i] & FirstOnes(size - first);
      const uint32_t count = static_cast<uint32_t>(_mm_popcnt_u64(word));
      const __m512i base = _mm512_set1_epi16(static_cast<int16_t>(first));
      const __m512i ones = _mm512_maskz_compress_epi8(word, all);
      _mm512_storeu_si512(
          out, _mm512_add_epi16(base, _mm512_cvtepu8_epi16(_mm512_castsi512_si256(ones))));
      if (count > 32) [[unlikely]] {
        _mm512_storeu_si512(
            out + 32,
            _mm512_add_epi16(base, _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(ones, 1))));
      }
      out += count;
    }
  }
  return static_cast<uint32_t>(out - numbers);
}

}  // namespace dws::kernels::internal
#endif
