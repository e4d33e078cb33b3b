// Compares without a branch on the data, as the AVX-512 variant does. Few lines are left then, so
// scalar code handles them.
#include "common/base/intrinsics.h"
#include "common/delta/kernels/diff_line_words.h"
#include "common/delta/kernels/diff_lines.h"

#if defined(__x86_64__)

namespace dws::kernels {
namespace {

constexpr uint32_t kRunLines = 32;
constexpr size_t kPrefetchBytes = 1024;  // about what is read while memory answers

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
      const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(after));
      const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(after + 32));
      const __m256i differs = _mm256_or_si256(
          _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(before)), low),
          _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(before + 32)),
                           high));
      std::byte* const keep = kept + size_t{count} * kLineBytes;
      _mm256_store_si256(reinterpret_cast<__m256i*>(keep), low);
      _mm256_store_si256(reinterpret_cast<__m256i*>(keep + 32), high);
      numbers[count] = i;
      count += _mm256_testz_si256(differs, differs) == 0 ? 1 : 0;
    }
    for (uint32_t i = 0; i < count; ++i) {
      append(lines.before + size_t{numbers[i]} * kLineBytes, kept + size_t{i} * kLineBytes,
             lines.first + numbers[i], found);
    }
  }
}

}  // namespace dws::kernels
#endif
