// Two steps for each run of lines, so that only the end of a step is a branch that depends on data:
//   1. compare: each line of `after` is loaded once and stored after the lines that differ so far;
//      if it does not differ, the next one overwrites it
//   2. extract: changed words and elements of the lines that differ are compressed to the front
// The first step has no prefetch: the processor prefetches both streams itself. Every explicit
// prefetch that was tried there (one stream or both, 512 bytes to 8 KiB ahead) cost a third of the
// speed. In the second step the processor stops reading ahead, so that step prefetches the lines
// that are compared next. Runs of 256 lines also cost a third.
#include "common/base/intrinsics.h"
#include "common/delta/kernels/diff_lines.h"

#if defined(__x86_64__)

namespace dws::kernels {
namespace {

constexpr uint32_t kRunLines = 64;

// The number of lines of each stream that are fetched for each line that is extracted. Measured
// with one line in four different: with fewer, memory delivers less than it could meanwhile, and
// more gain nothing.
constexpr uint32_t kFetchedLines = 3;

// Lines of `after` that differ, and their numbers in the run; with room for one that does not.
struct Run {
  alignas(kLineBytes) std::byte lines[(kRunLines + 1) * kLineBytes];
  uint8_t numbers[kRunLines + 1];
};

// Returns how many lines differ.
DWS_TARGET_AVX512 inline uint32_t Compare(const std::byte* before, const std::byte* after,
                                          uint32_t line_count, Run& run) {
  uint32_t found = 0;
#pragma GCC unroll 4
  for (uint32_t i = 0; i < line_count; ++i) {
    const size_t at = size_t{i} * kLineBytes;
    const __m512i line = _mm512_loadu_si512(after + at);
    _mm512_store_si512(run.lines + size_t{found} * kLineBytes, line);
    run.numbers[found] = static_cast<uint8_t>(i);
    found += _mm512_cmpneq_epi64_mask(_mm512_loadu_si512(before + at), line) != 0 ? 1 : 0;
  }
  return found;
}

// Stores the first `count` of 32 numbers of 16 bits as 64 bits each.
DWS_TARGET_AVX512 inline void StoreWidened16(__m512i values, uint32_t count, uint64_t* out) {
  _mm512_storeu_si512(out, _mm512_cvtepu16_epi64(_mm512_castsi512_si128(values)));
  if (count <= 8) [[likely]]
    return;
  _mm512_storeu_si512(out + 8, _mm512_cvtepu16_epi64(_mm512_extracti32x4_epi32(values, 1)));
  _mm512_storeu_si512(out + 16, _mm512_cvtepu16_epi64(_mm512_extracti32x4_epi32(values, 2)));
  _mm512_storeu_si512(out + 24, _mm512_cvtepu16_epi64(_mm512_extracti32x4_epi32(values, 3)));
}

// Elements 0, 1, 2, ... of a line.
DWS_TARGET_AVX512 inline __m512i Iota16() {
  return _mm512_set_epi16(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14,
                          13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
}

template <Mapping kMapping>
struct Elements1 {
  static DWS_TARGET_AVX512 inline __m512i Ordinal(__m512i x) {
    if (kMapping == Mapping::kInteger) return x;
    return _mm512_xor_si512(x,
                            _mm512_maskz_mov_epi8(_mm512_movepi8_mask(x), _mm512_set1_epi8(0x7F)));
  }
  // Half a line: 32 elements, whose positions fill one register.
  static DWS_TARGET_AVX512 inline void AppendHalf(__mmask32 mask, __m256i steps, uint32_t first,
                                                  DiffArrays& found) {
    const uint32_t count = static_cast<uint32_t>(__builtin_popcount(mask));
    const __m512i positions =
        _mm512_add_epi16(Iota16(), _mm512_set1_epi16(static_cast<short>(first)));
    _mm512_storeu_si512(found.positions + found.element_count,
                        _mm512_maskz_compress_epi16(mask, positions));
    StoreWidened16(_mm512_maskz_compress_epi16(mask, _mm512_cvtepu8_epi16(steps)), count,
                   found.steps + found.element_count);
    found.element_count += count;
  }
  static DWS_TARGET_AVX512 inline void Append(__m512i before, __m512i after, uint32_t line,
                                              DiffArrays& found) {
    const __mmask64 mask = _mm512_cmpneq_epi8_mask(before, after);
    const __m512i steps = _mm512_sub_epi8(Ordinal(after), Ordinal(before));
    AppendHalf(static_cast<__mmask32>(mask), _mm512_castsi512_si256(steps), line * 64, found);
    AppendHalf(static_cast<__mmask32>(mask >> 32), _mm512_extracti64x4_epi64(steps, 1),
               line * 64 + 32, found);
  }
};

template <Mapping kMapping>
struct Elements2 {
  static DWS_TARGET_AVX512 inline __m512i Ordinal(__m512i x) {
    if (kMapping == Mapping::kInteger) return x;
    const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
    return _mm512_xor_si512(x, _mm512_and_si512(_mm512_srai_epi16(x, 15), magnitude));
  }
  static DWS_TARGET_AVX512 inline void Append(__m512i before, __m512i after, uint32_t line,
                                              DiffArrays& found) {
    const __mmask32 mask = _mm512_cmpneq_epi16_mask(before, after);
    const uint32_t count = static_cast<uint32_t>(__builtin_popcount(mask));
    const __m512i steps = _mm512_sub_epi16(Ordinal(after), Ordinal(before));
    const __m512i positions =
        _mm512_add_epi16(Iota16(), _mm512_set1_epi16(static_cast<short>(line * 32)));
    _mm512_storeu_si512(found.positions + found.element_count,
                        _mm512_maskz_compress_epi16(mask, positions));
    StoreWidened16(_mm512_maskz_compress_epi16(mask, steps), count,
                   found.steps + found.element_count);
    found.element_count += count;
  }
};

template <Mapping kMapping>
struct Elements4 {
  static DWS_TARGET_AVX512 inline __m512i Ordinal(__m512i x) {
    if (kMapping == Mapping::kInteger) return x;
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    return _mm512_xor_si512(x, _mm512_and_si512(_mm512_srai_epi32(x, 31), magnitude));
  }
  static DWS_TARGET_AVX512 inline void Append(__m512i before, __m512i after, uint32_t line,
                                              DiffArrays& found) {
    const __mmask16 mask = _mm512_cmpneq_epi32_mask(before, after);
    const __m512i steps =
        _mm512_maskz_compress_epi32(mask, _mm512_sub_epi32(Ordinal(after), Ordinal(before)));
    const __m256i positions = _mm256_add_epi16(_mm512_castsi512_si256(Iota16()),
                                               _mm256_set1_epi16(static_cast<short>(line * 16)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(found.positions + found.element_count),
                        _mm256_maskz_compress_epi16(mask, positions));
    uint64_t* const out = found.steps + found.element_count;
    _mm512_storeu_si512(out, _mm512_cvtepu32_epi64(_mm512_castsi512_si256(steps)));
    _mm512_storeu_si512(out + 8, _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(steps, 1)));
    found.element_count += static_cast<uint32_t>(__builtin_popcount(mask));
  }
};

template <Mapping kMapping>
struct Elements8 {
  static DWS_TARGET_AVX512 inline __m512i Ordinal(__m512i x) {
    if (kMapping == Mapping::kInteger) return x;
    const __m512i magnitude = _mm512_set1_epi64(0x7FFFFFFFFFFFFFFF);
    return _mm512_xor_si512(x, _mm512_and_si512(_mm512_srai_epi64(x, 63), magnitude));
  }
  static DWS_TARGET_AVX512 inline void Append(__m512i before, __m512i after, uint32_t line,
                                              DiffArrays& found) {
    const __mmask8 mask = _mm512_cmpneq_epi64_mask(before, after);
    const __m512i steps = _mm512_sub_epi64(Ordinal(after), Ordinal(before));
    const __m128i positions = _mm_add_epi16(_mm512_castsi512_si128(Iota16()),
                                            _mm_set1_epi16(static_cast<short>(line * 8)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(found.positions + found.element_count),
                     _mm_maskz_compress_epi16(mask, positions));
    _mm512_storeu_si512(found.steps + found.element_count,
                        _mm512_maskz_compress_epi64(mask, steps));
    found.element_count += static_cast<uint32_t>(__builtin_popcount(mask));
  }
};

DWS_TARGET_AVX512 inline void AppendWords(__m512i before, __m512i after, uint32_t line,
                                          DiffArrays& found) {
  const __mmask8 mask = _mm512_cmpneq_epi64_mask(before, after);
  const __m128i numbers =
      _mm_add_epi16(_mm512_castsi512_si128(Iota16()), _mm_set1_epi16(static_cast<short>(line * 8)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(found.words + found.word_count),
                   _mm_maskz_compress_epi16(mask, numbers));
  _mm512_storeu_si512(found.words_before + found.word_count,
                      _mm512_maskz_compress_epi64(mask, before));
  _mm512_storeu_si512(found.words_after + found.word_count,
                      _mm512_maskz_compress_epi64(mask, after));
  found.word_count += static_cast<uint32_t>(__builtin_popcount(mask));
}

// Fetches lines after a run, for extracted line number `extracted`: of about the next two runs,
// which need not exist.
DWS_TARGET_AVX512 inline void FetchNext(const std::byte* run, uint32_t extracted) {
  if (extracted * kFetchedLines >= 2 * kRunLines) return;
  const uint32_t line = kRunLines + extracted * kFetchedLines;
  const uintptr_t at = reinterpret_cast<uintptr_t>(run) + size_t{line} * kLineBytes;
  for (uint32_t i = 0; i < kFetchedLines; ++i) {
    _mm_prefetch(reinterpret_cast<const char*>(at + size_t{i} * kLineBytes), _MM_HINT_T0);
  }
}

template <typename Elements>
DWS_TARGET_AVX512 void DiffRun(const LineRun& lines, DiffArrays& result) {
  DiffArrays found = result;  // a copy whose counts stay in registers
  Run run;
  for (uint32_t begin = 0; begin < lines.count; begin += kRunLines) {
    const std::byte* const before = lines.before + size_t{begin} * kLineBytes;
    const std::byte* const after = lines.after + size_t{begin} * kLineBytes;
    const uint32_t left = lines.count - begin;
    const uint32_t changed = Compare(before, after, left < kRunLines ? left : kRunLines, run);
    for (uint32_t i = 0; i < changed; ++i) {
      FetchNext(before, i);
      FetchNext(after, i);
      const uint32_t number = run.numbers[i];
      const __m512i new_line = _mm512_load_si512(run.lines + size_t{i} * kLineBytes);
      const __m512i old_line = _mm512_loadu_si512(before + size_t{number} * kLineBytes);
      const uint32_t line = lines.first + begin + number;
      AppendWords(old_line, new_line, line, found);
      Elements::Append(old_line, new_line, line, found);
    }
  }
  result.element_count = found.element_count;
  result.word_count = found.word_count;
}

template <template <Mapping> class Elements>
DWS_TARGET_AVX512 void DiffRunOf(Mapping mapping, const LineRun& lines, DiffArrays& found) {
  if (mapping == Mapping::kFloat) return DiffRun<Elements<Mapping::kFloat>>(lines, found);
  return DiffRun<Elements<Mapping::kInteger>>(lines, found);
}

}  // namespace

DWS_TARGET_AVX512 void DiffLinesAvx512(ElementKind kind, const LineRun& lines, DiffArrays& found) {
  switch (kind.bytes) {
    case 1:
      return DiffRunOf<Elements1>(kind.mapping, lines, found);
    case 2:
      return DiffRunOf<Elements2>(kind.mapping, lines, found);
    case 4:
      return DiffRunOf<Elements4>(kind.mapping, lines, found);
    default:
      return DiffRunOf<Elements8>(kind.mapping, lines, found);
  }
}

}  // namespace dws::kernels
#endif
