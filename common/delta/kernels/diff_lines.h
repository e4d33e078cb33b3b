// The inner loop of a diff: which words and elements of two states of a block differ. One variant
// for each instruction set; all find the same.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/instruction_set.h"
#include "common/model/tensor_spec.h"

namespace dws::kernels {

inline constexpr uint32_t kLineBytes = 64;

// The result of a diff, and its size so far. The arrays have room for the whole block and kSlack
// more entries, which kernels may overwrite.
struct DiffArrays {
  static constexpr size_t kSlack = 64;

  uint16_t* positions = nullptr;  // of the changed elements, ascending
  uint64_t* steps = nullptr;      // of the same
  uint16_t* words = nullptr;      // numbers of the changed 8-byte words, ascending
  uint64_t* words_before = nullptr;
  uint64_t* words_after = nullptr;
  uint32_t element_count = 0;
  uint32_t word_count = 0;
};

// The elements in the lines.
struct ElementKind {
  uint32_t bytes = 1;  // 1, 2, 4 or 8
  Mapping mapping = Mapping::kInteger;
};

// A run of whole lines of two states of one block, at any alignment.
struct LineRun {
  const std::byte* before = nullptr;
  const std::byte* after = nullptr;
  uint32_t first = 0;  // number of the first line in the block
  uint32_t count = 0;
};

// Appends the differences. It loads every byte of `after` only once, because its owner may be
// writing to it. The machine must support `set`.
void DiffLines(InstructionSet set, ElementKind kind, const LineRun& lines, DiffArrays& found);

// The variants.
void DiffLinesPortable(ElementKind kind, const LineRun& lines, DiffArrays& found);
void DiffLinesAvx2(ElementKind kind, const LineRun& lines, DiffArrays& found);
void DiffLinesAvx512(ElementKind kind, const LineRun& lines, DiffArrays& found);

}  // namespace dws::kernels
