// Eight elements in eight 64-bit lanes, whatever their width: each lane has the whole word around
// its element. When changes are sparse, two changed elements in one word are rare. Groups without
// such a word store all lanes at once; in other groups the lanes of a word are combined first.
#include "common/delta/kernels/changed_words.h"

#if defined(__x86_64__)
#include <bit>
#include <cstring>

#include "common/base/instruction_set.h"
#include "common/base/intrinsics.h"

namespace dws::kernels {
namespace {

constexpr uint32_t kGroup = 8;

DWS_TARGET_AVX512 inline uint64_t LoadWord(const std::byte* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

// How elements lie in words, for all groups.
struct Shape {
  uint32_t bytes = 1;       // of an element
  uint32_t lanes_log2 = 3;  // elements of a word
  __m128i number_shift;     // from a position to its word
  __m128i bits_shift;       // from an element's number in its word to bits
  __m128i bytes_shift;      // the same to bytes
  __m128i top_shift;        // from the bottom of 64 bits to the top
  __m512i lane_mask;
  __m512i magnitude_mask;  // of an element at the top: all but the sign; 0 for integers
};

DWS_TARGET_AVX512 inline Shape MakeShape(const ElementChanges& changes) {
  const int bytes_log2 = std::countr_zero(changes.element_bytes);
  const int bits = static_cast<int>(changes.element_bytes) * 8;
  const uint64_t element_mask = ~uint64_t{0} << (64 - bits);
  const uint64_t magnitude = changes.is_float ? element_mask & (~uint64_t{0} >> 1) : 0;
  return {.bytes = changes.element_bytes,
          .lanes_log2 = static_cast<uint32_t>(3 - bytes_log2),
          .number_shift = _mm_cvtsi32_si128(3 - bytes_log2),
          .bits_shift = _mm_cvtsi32_si128(3 + bytes_log2),
          .bytes_shift = _mm_cvtsi32_si128(bytes_log2),
          .top_shift = _mm_cvtsi32_si128(64 - bits),
          .lane_mask = _mm512_set1_epi64((1 << (3 - bytes_log2)) - 1),
          .magnitude_mask = _mm512_set1_epi64(static_cast<int64_t>(magnitude))};
}

// Conversion from a float's bits to its ordinal and back, in lanes whose element is at the top.
DWS_TARGET_AVX512 inline __m512i Ordinal(__m512i top_aligned, __m512i magnitude_mask) {
  const __m512i sign = _mm512_srai_epi64(top_aligned, 63);
  return _mm512_xor_si512(top_aligned, _mm512_and_si512(sign, magnitude_mask));
}

// For eight elements: the numbers of their words, the words, and the bits in which they change.
struct Group {
  __m512i number;
  __m512i before;
  __m512i difference;
};

DWS_TARGET_AVX512 inline void StoreValues(const Shape& shape, __m512i values, std::byte* to) {
  if (shape.bytes == 2) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_maskz_cvtepi64_epi16(0xFF, values));
  } else if (shape.bytes == 4) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_maskz_cvtepi64_epi32(0xFF, values));
  } else if (shape.bytes == 8) {
    _mm512_storeu_si512(to, values);
  } else {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm512_maskz_cvtepi64_epi8(0xFF, values));
  }
}

// Handles eight elements from number `i` on and stores their new values.
DWS_TARGET_AVX512 inline Group ChangeGroup(const Shape& shape, const ElementChanges& changes,
                                           uint32_t i, std::byte* new_values) {
  const __m512i position = _mm512_cvtepu16_epi64(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(changes.positions + i)));
  const __m512i lane = _mm512_and_si512(position, shape.lane_mask);
  const __m512i offset = _mm512_cvtepu32_epi64(
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(changes.offsets + i)));
  alignas(64) int64_t at[kGroup];
  _mm512_store_si512(at, _mm512_sub_epi64(offset, _mm512_sll_epi64(lane, shape.bytes_shift)));
  alignas(64) uint64_t loaded[kGroup];
  for (uint32_t j = 0; j < kGroup; ++j) loaded[j] = LoadWord(changes.memory + at[j]);
  const __m512i before = _mm512_load_si512(loaded);

  // Moves each element to the top of its lane: first to the bottom by `down`, then up.
  const __m512i down = _mm512_sll_epi64(lane, shape.bits_shift);
  const __m512i old_top = _mm512_sll_epi64(_mm512_srlv_epi64(before, down), shape.top_shift);
  const __m512i value = _mm512_sll_epi64(_mm512_loadu_si512(changes.values + i), shape.top_shift);
  __m512i new_top = value;
  if (changes.are_steps) {
    new_top = Ordinal(_mm512_add_epi64(Ordinal(old_top, shape.magnitude_mask), value),
                      shape.magnitude_mask);
  }
  StoreValues(shape, _mm512_srl_epi64(new_top, shape.top_shift),
              new_values + size_t{i} * shape.bytes);
  const __m512i bits = _mm512_srl_epi64(_mm512_xor_si512(old_top, new_top), shape.top_shift);
  return {.number = _mm512_srl_epi64(position, shape.number_shift),
          .before = before,
          .difference = _mm512_sllv_epi64(bits, down)};
}

// Combines (XOR) each lane's difference with that of the lane `kBefore` lanes before it, if both
// are in one word. Numbers ascend, so then all lanes between them are in it, too.
template <int kBefore>
DWS_TARGET_AVX512 inline __m512i CombineLanes(__m512i number, __m512i difference) {
  constexpr int kRest = static_cast<int>(kGroup) - kBefore;
  const __mmask8 same =
      _mm512_cmpeq_epi64_mask(number, _mm512_alignr_epi64(number, _mm512_set1_epi64(-1), kRest));
  const __m512i before = _mm512_alignr_epi64(difference, _mm512_setzero_si512(), kRest);
  return _mm512_mask_xor_epi64(difference, same, difference, before);
}

// Appends a group to the `listed` words of the list, the last of which has number `last` (of an
// empty list: a number that no word has). Returns the new length.
DWS_TARGET_AVX512 inline uint32_t ListGroup(const Group& group, uint32_t lanes_log2, uint32_t last,
                                            uint32_t listed, const WordList& words) {
  // Lanes that have the same word as the lane before them.
  const __m512i previous =
      _mm512_alignr_epi64(group.number, _mm512_set1_epi64(static_cast<int64_t>(last)), 7);
  const __mmask8 same = _mm512_cmpeq_epi64_mask(group.number, previous);
  if (same == 0) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(words.numbers + listed),
                     _mm512_maskz_cvtepi64_epi16(0xFF, group.number));
    _mm512_storeu_si512(words.before + listed, group.before);
    _mm512_storeu_si512(words.after + listed, _mm512_xor_si512(group.before, group.difference));
    return listed + kGroup;
  }
  __m512i difference = group.difference;
  if ((same & 1) != 0) {  // continues the word listed last
    --listed;
    const uint64_t before = words.before[listed] ^ words.after[listed];
    difference = _mm512_mask_xor_epi64(difference, 1, difference,
                                       _mm512_set1_epi64(static_cast<int64_t>(before)));
  }
  // A word's last lane gets what all of its lanes change. Positions ascend strictly, so no word has
  // more lanes than elements.
  difference = CombineLanes<1>(group.number, difference);
  difference = CombineLanes<2>(group.number, difference);
  if (lanes_log2 == 3) difference = CombineLanes<4>(group.number, difference);
  const __m512i next = _mm512_alignr_epi64(_mm512_set1_epi64(-1), group.number, 1);
  const __mmask8 ends = _mm512_cmpneq_epi64_mask(group.number, next);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(words.numbers + listed),
      _mm512_maskz_cvtepi64_epi16(0xFF, _mm512_maskz_compress_epi64(ends, group.number)));
  _mm512_storeu_si512(words.before + listed, _mm512_maskz_compress_epi64(ends, group.before));
  _mm512_storeu_si512(words.after + listed, _mm512_maskz_compress_epi64(
                                                ends, _mm512_xor_si512(group.before, difference)));
  return listed + static_cast<uint32_t>(__builtin_popcount(ends));
}

// Lists the elements from number `i` on, one by one. The first may be in the word that was listed
// last.
uint32_t ListRest(const ElementChanges& changes, uint32_t i, uint32_t lanes_log2, uint32_t last,
                  uint32_t listed, std::byte* new_values, const WordList& words) {
  if (i == changes.count) return listed;
  ElementChanges rest = changes;
  rest.offsets += i;
  rest.positions += i;
  rest.values += i;
  rest.count -= i;
  const WordList behind{.numbers = words.numbers + listed,
                        .before = words.before + listed,
                        .after = words.after + listed};
  uint32_t more =
      ListChangedWordsPortable(rest, new_values + size_t{i} * changes.element_bytes, behind);
  if (static_cast<uint32_t>(rest.positions[0] >> lanes_log2) != last) return listed + more;
  // Both entries begin with the word in memory, so the second one's changes are added to the first.
  words.after[listed - 1] ^= behind.before[0] ^ behind.after[0];
  --more;
  std::memmove(behind.numbers, behind.numbers + 1, more * sizeof(*behind.numbers));
  std::memmove(behind.before, behind.before + 1, more * sizeof(*behind.before));
  std::memmove(behind.after, behind.after + 1, more * sizeof(*behind.after));
  return listed + more;
}

}  // namespace

DWS_TARGET_AVX512 uint32_t ListChangedWordsAvx512(const ElementChanges& changes,
                                                  std::byte* new_values, const WordList& words) {
  for (uint32_t i = 0; i < changes.fetch_count; ++i) {
    __builtin_prefetch(changes.fetch_memory + changes.fetch_offsets[i], 0, 2);
  }
  const Shape shape = MakeShape(changes);
  uint32_t listed = 0;
  uint32_t last = ~uint32_t{0};  // the word listed last
  uint32_t i = 0;
  for (; i + kGroup <= changes.count; i += kGroup) {
    listed = ListGroup(ChangeGroup(shape, changes, i, new_values), shape.lanes_log2, last, listed,
                       words);
    last = words.numbers[listed - 1];
  }
  ElementChanges fetched = changes;
  fetched.fetch_count = 0;
  return ListRest(fetched, i, shape.lanes_log2, last, listed, new_values, words);
}

}  // namespace dws::kernels
#endif
