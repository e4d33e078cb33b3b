// What runs on other processors, and what the vector versions are compared with in tests.
#include <cstring>

#include "common/delta/kernels/diff_line_words.h"
#include "common/delta/kernels/diff_lines.h"

namespace dws::kernels {

void DiffLinesPortable(ElementKind kind, const LineRun& lines, DiffArrays& found) {
  const AppendLineFunction append = ChooseAppendLine(kind);
  for (uint32_t i = 0; i < lines.count; ++i) {
    const std::byte* const before = lines.before + size_t{i} * kLineBytes;
    uint64_t after[kLineBytes / 8];  // a copy, so that every byte of `after` is loaded once
    std::memcpy(after, lines.after + size_t{i} * kLineBytes, kLineBytes);
    uint64_t any = 0;
    for (uint32_t j = 0; j < kLineBytes / 8; ++j) {
      any |= after[j] ^ LoadLe<uint64_t>(before + size_t{j} * 8);
    }
    if (any == 0) continue;
    append(before, reinterpret_cast<const std::byte*>(after), lines.first + i, found);
  }
}

void DiffLines(InstructionSet set, ElementKind kind, const LineRun& lines, DiffArrays& found) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return DiffLinesAvx512(kind, lines, found);
  if (set == InstructionSet::kAvx2) return DiffLinesAvx2(kind, lines, found);
#endif
  return DiffLinesPortable(kind, lines, found);
}

}  // namespace dws::kernels
