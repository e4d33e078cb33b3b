// The inner loops of class-split (FORMAT.md, "Mode 3"): which elements of a
// block belong to which class, and the way between positions in the block and
// ranks inside the classes. One answer, several instruction sets.
//
// An element's class is the number of thresholds its magnitude byte reaches;
// its rank is the number of elements of its class before it. Elements are
// looked at in groups of 64, with a bit each in a word; the index says of every
// group and class which elements those are and how many come before, so that
// ranks and positions are found for the changed elements alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/base/instruction_set.h"
#include "common/model/class_table.h"
#include "common/model/limits.h"

namespace dws::kernels {

inline constexpr size_t kMaskWords = limits::kBlockElements / 64;

// Bit i % 64 of word i / 64 is element i.
using BlockMask = std::array<uint64_t, kMaskWords>;

struct ClassIndex {
  std::array<std::array<uint64_t, kClassesMax>, kMaskWords> members;  // by group and class
  // By class and group: the rank of the group's first member. Behind the last group of the block
  // 0xFFFF, which no element of so few has.
  alignas(64) std::array<std::array<uint16_t, kMaskWords>, kClassesMax> ranks;
  std::array<uint32_t, kClassesMax> sizes;  // elements of each class; 0 where there is no class
  uint32_t group_count = 0;
};

// What an index is made of: `count` elements (at most a block) of
// `element_bytes` each, floats; no threshold is above their largest magnitude
// byte.
struct ClassIndexInput {
  const std::byte* elements = nullptr;
  uint32_t element_bytes = 0;
  uint32_t count = 0;
  const ClassTable* classes = nullptr;
};

void IndexClasses(InstructionSet set, const ClassIndexInput& input, ClassIndex& index);

// ranks[i] of the elements at positions[i], which are of classes[i].
void RankElements(InstructionSet set, const ClassIndex& index, const uint16_t* positions,
                  const uint8_t* classes, uint32_t count, uint16_t* ranks);

// Flips in `mask` the bits of the elements that have these `count` ranks in
// class `c`: ascending, below its size.
void FlipRanks(InstructionSet set, const ClassIndex& index, size_t c, const uint16_t* ranks,
               uint32_t count, uint64_t* mask);

// The numbers of the ones among the first `size` bits of `words`, ascending;
// returns how many. `numbers` has room for them and kNumbersSlack more.
inline constexpr size_t kNumbersSlack = 64;
uint32_t ListOnes(InstructionSet set, const uint64_t* words, uint32_t size, uint16_t* numbers);

namespace internal {
// For floats of 1 and 2 bytes.
void IndexClassesAvx2(const ClassIndexInput& input, ClassIndex& index);
void IndexClassesAvx512(const ClassIndexInput& input, ClassIndex& index);
void RankElementsAvx2(const ClassIndex& index, const uint16_t* positions, const uint8_t* classes,
                      uint32_t count, uint16_t* ranks);
void FlipRanksAvx512(const ClassIndex& index, size_t c, const uint16_t* ranks, uint32_t count,
                     uint64_t* mask);
uint32_t ListOnesAvx512(const uint64_t* words, uint32_t size, uint16_t* numbers);
}  // namespace internal

}  // namespace dws::kernels
