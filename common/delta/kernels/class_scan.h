// The inner loops of class-split (FORMAT.md, "Mode 3"): which elements of a block belong to which
// class, and the way between positions in the block and ranks inside the classes. One answer,
// several instruction sets.
//
// An element's class is the number of thresholds its magnitude byte reaches; its rank is the number
// of elements of its class before it. A class's bits, one for each of its elements by rank, say
// which of them are marked. Marking is by position in a mask of the block: bit i % 64 of word i /
// 64 is element i.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/base/instruction_set.h"
#include "common/model/class_table.h"
#include "common/model/limits.h"

namespace dws::kernels {

inline constexpr size_t kMaskWords = limits::kBlockElements / 64;

using BlockMask = std::array<uint64_t, kMaskWords>;

// The marks of every class by rank. Two words behind a full class: readers load a word too many.
struct ClassMarks {
  std::array<std::array<uint64_t, kMaskWords + 2>, kClassesMax> words;
  std::array<uint32_t, kClassesMax> sizes;  // elements of each class; 0 where there is no class
};

// What a scan reads: `count` elements (at most a block) of `element_bytes` each, floats; no
// threshold is above their largest magnitude byte.
struct ClassScanInput {
  const std::byte* elements = nullptr;
  uint32_t element_bytes = 0;
  uint32_t count = 0;
  const ClassTable* classes = nullptr;
};

// Fills `marks` from `mask`: sizes, and of each class the words that hold its elements.
void SplitByClass(InstructionSet set, const ClassScanInput& input, const BlockMask& mask,
                  ClassMarks& marks);

// The way back. Fills sizes, and as many words of `mask` as hold elements. Bits of `marks` behind
// the last element of a class are not looked at.
void MergeClasses(InstructionSet set, const ClassScanInput& input, ClassMarks& marks,
                  BlockMask& mask);

// The numbers of the first `size` bits of `words` that are `marked`, ascending; returns how many.
// `numbers` has room for them and kNumbersSlack more.
inline constexpr size_t kNumbersSlack = 32;
uint32_t ListMarks(InstructionSet set, const uint64_t* words, uint32_t size, bool marked,
                   uint16_t* numbers);

namespace internal {
uint32_t ListMarksAvx512(const uint64_t* words, uint32_t size, uint64_t flip, uint16_t* numbers);
// Variants for 1- and 2-byte floats; false: not for this width.
bool SplitByClassAvx512(const ClassScanInput& input, const BlockMask& mask, ClassMarks& marks);
bool MergeClassesAvx512(const ClassScanInput& input, ClassMarks& marks, BlockMask& mask);
bool SplitByClassAvx2(const ClassScanInput& input, const BlockMask& mask, ClassMarks& marks);
bool MergeClassesAvx2(const ClassScanInput& input, ClassMarks& marks, BlockMask& mask);
}  // namespace internal

}  // namespace dws::kernels
