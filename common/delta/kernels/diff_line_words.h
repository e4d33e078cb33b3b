// Lists the differences in one line, without vector instructions: for the variants of DiffLines
// whose instruction set has no compress instruction.
#pragma once

#include "common/base/bytes.h"
#include "common/delta/bits/ordinal.h"
#include "common/delta/kernels/diff_lines.h"

namespace dws::kernels {

// Appends the changed elements of one word whose first element has number `first`. It has no
// branch, because the processor cannot predict which elements of a word changed.
template <typename Bits, Mapping kMapping>
static inline void AppendElements(uint64_t before, uint64_t after, uint32_t first,
                                  DiffArrays& found) {
  constexpr uint32_t kBits = sizeof(Bits) * 8;
  uint32_t count = found.element_count;
  for (uint32_t lane = 0; lane < 64 / kBits; ++lane) {
    const Bits old_bits = static_cast<Bits>(before >> (lane * kBits));
    const Bits new_bits = static_cast<Bits>(after >> (lane * kBits));
    found.positions[count] = static_cast<uint16_t>(first + lane);
    found.steps[count] =
        static_cast<Bits>(ToOrdinal(new_bits, kMapping) - ToOrdinal(old_bits, kMapping));
    count += old_bits != new_bits ? 1 : 0;
  }
  found.element_count = count;
}

// Appends the changed words and elements of line number `line`.
template <typename Bits, Mapping kMapping>
static inline void AppendLine(const std::byte* before, const std::byte* after, uint32_t line,
                              DiffArrays& found) {
  constexpr uint32_t kWords = kLineBytes / 8;
  const uint32_t begin = found.word_count;
  uint32_t end = begin;
  for (uint32_t i = 0; i < kWords; ++i) {
    const uint64_t old_word = LoadLe<uint64_t>(before + size_t{i} * 8);
    const uint64_t new_word = LoadLe<uint64_t>(after + size_t{i} * 8);
    found.words[end] = static_cast<uint16_t>(line * kWords + i);
    found.words_before[end] = old_word;
    found.words_after[end] = new_word;
    end += old_word != new_word ? 1 : 0;
  }
  for (uint32_t i = begin; i < end; ++i) {
    AppendElements<Bits, kMapping>(found.words_before[i], found.words_after[i],
                                   found.words[i] * uint32_t{8 / sizeof(Bits)}, found);
  }
  found.word_count = end;
}

using AppendLineFunction = void (*)(const std::byte* before, const std::byte* after, uint32_t line,
                                    DiffArrays& found);

template <typename Bits>
inline AppendLineFunction AppendLineOf(Mapping mapping) {
  return mapping == Mapping::kFloat ? AppendLine<Bits, Mapping::kFloat>
                                    : AppendLine<Bits, Mapping::kInteger>;
}

// The AppendLine of a kind of elements.
inline AppendLineFunction ChooseAppendLine(ElementKind kind) {
  switch (kind.bytes) {
    case 1:
      return AppendLineOf<uint8_t>(kind.mapping);
    case 2:
      return AppendLineOf<uint16_t>(kind.mapping);
    case 4:
      return AppendLineOf<uint32_t>(kind.mapping);
    default:
      return AppendLineOf<uint64_t>(kind.mapping);
  }
}

}  // namespace dws::kernels
