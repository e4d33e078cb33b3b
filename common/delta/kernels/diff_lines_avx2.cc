// Compares without a branch on the data, as the AVX-512 variant does. Usually few lines differ, and
// scalar code handles them. If all lines of a run differ, it is likely that every element in them
// differs: such lines of 16-bit elements are handled with vectors.
#include "common/base/intrinsics.h"
#include "common/delta/kernels/diff_line_words.h"
#include "common/delta/kernels/diff_lines.h"

#if defined(__x86_64__)

namespace dws::kernels {
namespace {

constexpr uint32_t kRunLines = 32;
constexpr size_t kPrefetchBytes = 1024;  // about as much as is read while memory answers
constexpr uint32_t kElements16 = kLineBytes / 2;

DWS_TARGET_AVX2 inline __m256i Load(const std::byte* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
DWS_TARGET_AVX2 inline void Store(void* to, __m256i vector) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), vector);
}

// Ordinals of 16-bit elements; `magnitude` is 0 for integers.
DWS_TARGET_AVX2 inline __m256i Ordinal16(__m256i x, __m256i magnitude) {
  return _mm256_xor_si256(x, _mm256_and_si256(_mm256_srai_epi16(x, 15), magnitude));
}

// Stores 16 numbers of 16 bits as 64 bits each.
DWS_TARGET_AVX2 inline void StoreWidened(__m256i values, uint64_t* to) {
  const __m128i low = _mm256_castsi256_si128(values);
  const __m128i high = _mm256_extracti128_si256(values, 1);
  Store(to, _mm256_cvtepu16_epi64(low));
  Store(to + 4, _mm256_cvtepu16_epi64(_mm_srli_si128(low, 8)));
  Store(to + 8, _mm256_cvtepu16_epi64(high));
  Store(to + 12, _mm256_cvtepu16_epi64(_mm_srli_si128(high, 8)));
}

// 0, 1, 2, ... 15
DWS_TARGET_AVX2 inline __m256i Iota16() {
  return _mm256_set_epi16(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
}

// Appends a line of 16-bit elements and returns true if every element of it differs.
DWS_TARGET_AVX2 inline bool AppendWholeLine16(Mapping mapping, const std::byte* before,
                                              const std::byte* after, uint32_t line,
                                              DiffArrays& found) {
  const __m256i magnitude =
      _mm256_set1_epi16(static_cast<short>(mapping == Mapping::kFloat ? 0x7FFF : 0));
  const __m256i old_low = Load(before);
  const __m256i old_high = Load(before + 32);
  const __m256i new_low = Load(after);
  const __m256i new_high = Load(after + 32);
  const __m256i equal =
      _mm256_or_si256(_mm256_cmpeq_epi16(old_low, new_low), _mm256_cmpeq_epi16(old_high, new_high));
  if (_mm256_testz_si256(equal, equal) == 0) return false;
  uint16_t* const positions = found.positions + found.element_count;
  const __m256i first =
      _mm256_add_epi16(Iota16(), _mm256_set1_epi16(static_cast<short>(line * kElements16)));
  Store(positions, first);
  Store(positions + 16, _mm256_add_epi16(first, _mm256_set1_epi16(16)));
  uint64_t* const steps = found.steps + found.element_count;
  StoreWidened(_mm256_sub_epi16(Ordinal16(new_low, magnitude), Ordinal16(old_low, magnitude)),
               steps);
  StoreWidened(_mm256_sub_epi16(Ordinal16(new_high, magnitude), Ordinal16(old_high, magnitude)),
               steps + 16);
  found.element_count += kElements16;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(found.words + found.word_count),
                   _mm_add_epi16(_mm256_castsi256_si128(Iota16()),  // 0 to 7
                                 _mm_set1_epi16(static_cast<short>(line * 8))));
  Store(found.words_before + found.word_count, old_low);
  Store(found.words_before + found.word_count + 4, old_high);
  Store(found.words_after + found.word_count, new_low);
  Store(found.words_after + found.word_count + 4, new_high);
  found.word_count += kLineBytes / 8;
  return true;
}

}  // namespace

DWS_TARGET_AVX2 void DiffLinesAvx2(ElementKind kind, const LineRun& lines, DiffArrays& found) {
  const AppendLineFunction append = ChooseAppendLine(kind);
  alignas(kLineBytes) std::byte kept[(kRunLines + 1) * kLineBytes];
  uint32_t numbers[kRunLines + 1];
  for (uint32_t begin = 0; begin < lines.count; begin += kRunLines) {
    const uint32_t end = lines.count - begin < kRunLines ? lines.count : begin + kRunLines;
    uint32_t count = 0;
    for (uint32_t i = begin; i < end; ++i) {
      const std::byte* const before = lines.before + size_t{i} * kLineBytes;
      const std::byte* const after = lines.after + size_t{i} * kLineBytes;
      _mm_prefetch(reinterpret_cast<const char*>(before + kPrefetchBytes), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(after + kPrefetchBytes), _MM_HINT_T0);
      const __m256i low = Load(after);
      const __m256i high = Load(after + 32);
      const __m256i differs = _mm256_or_si256(_mm256_xor_si256(Load(before), low),
                                              _mm256_xor_si256(Load(before + 32), high));
      std::byte* const keep = kept + size_t{count} * kLineBytes;
      _mm256_store_si256(reinterpret_cast<__m256i*>(keep), low);
      _mm256_store_si256(reinterpret_cast<__m256i*>(keep + 32), high);
      numbers[count] = i;
      count += _mm256_testz_si256(differs, differs) == 0 ? 1 : 0;
    }
    const bool maybe_whole = kind.bytes == 2 && count == end - begin;
    for (uint32_t i = 0; i < count; ++i) {
      const std::byte* const before = lines.before + size_t{numbers[i]} * kLineBytes;
      const std::byte* const after = kept + size_t{i} * kLineBytes;
      const uint32_t line = lines.first + numbers[i];
      if (maybe_whole && AppendWholeLine16(kind.mapping, before, after, line, found)) continue;
      append(before, after, line, found);
    }
  }
}

}  // namespace dws::kernels
#endif
