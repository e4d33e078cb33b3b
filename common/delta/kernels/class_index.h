// The inner loops of class-split (FORMAT.md, "Mode 3"): which elements of a block belong to which
// class, and the conversion between positions in the block and ranks inside the classes. The
// variants for several instruction sets give the same results.
//
// An element's class is the number of thresholds that its magnitude byte reaches; its rank is the
// number of elements of its class before it. Elements form groups of 64, one bit of a word for
// each. For every group and class the index has the members as bits and the number of members in
// earlier groups. So ranks and positions are computed for the changed elements only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/base/fetch_ahead.h"
#include "common/base/instruction_set.h"
#include "common/model/class_table.h"
#include "common/model/limits.h"

namespace dws::kernels {

inline constexpr size_t kMaskWords = limits::kBlockElements / 64;

// How much room after their results ListOnes and SortByClass overwrite.
inline constexpr uint32_t kNumbersSlack = 64;

// How far ahead IndexClasses fetches elements (with AVX-512), also those of the next block: while
// an index is computed the processor's own prefetches fall behind.
inline constexpr size_t kIndexAheadBytes = 8192;

// Lines that FlipRanks fetches at each rank. Measured where 1 % of the elements changed: one is
// less than memory delivers meanwhile, with three the ranks wait for memory.
inline constexpr uint32_t kLinesARank = 2;

// Bit i % 64 of word i / 64 is element i.
using BlockMask = std::array<uint64_t, kMaskWords>;

// The classes of one block's elements. About 80 KiB: too large for the stack.
struct ClassIndex {
  std::array<std::array<uint64_t, kClassesMax>, kMaskWords> members;  // by group and class
  // By class and group: the rank of the group's first member. Groups after the block's last have
  // 0xFFFF, which is no rank in a block with so few elements.
  alignas(64) std::array<std::array<uint16_t, kMaskWords>, kClassesMax> ranks;
  std::array<uint32_t, kClassesMax> sizes;  // elements of each class; 0 where there is no class
  uint32_t group_count = 0;
};

// The input of an index: `count` floats (at most a block) of `element_bytes` each. No threshold is
// above their largest possible magnitude byte.
struct ClassIndexInput {
  const std::byte* elements = nullptr;
  uint32_t element_bytes = 0;
  uint32_t count = 0;
  const ClassTable* classes = nullptr;
  // If not nullptr: kMaskWords words, of which those of the block's groups become the members of
  // `marked_classes`, a bit for each class; the others are left undefined.
  uint64_t* marked = nullptr;
  uint8_t marked_classes = 0;
};

void IndexClasses(InstructionSet set, const ClassIndexInput& input, ClassIndex& index);

// Fills ranks[i] for the elements at positions[i], which are of classes[i].
void RankElements(InstructionSet set, const ClassIndex& index, const uint16_t* positions,
                  const uint8_t* classes, uint32_t count, uint16_t* ranks);

// Sorts numbers by class and keeps their order: those of class c are written to sorted[c * stride]
// and after, and their number to sizes[c]. `stride` is at least count + kNumbersSlack.
void SortByClass(InstructionSet set, const uint8_t* classes, const uint16_t* numbers,
                 uint32_t count, size_t class_count, uint32_t stride, uint16_t* sorted,
                 uint32_t* sizes);

// Flips in `mask` the bits of the elements that have these `count` ranks in class `c`. Ranks are
// ascending and below the size of the class. Fetches kLinesARank lines of `ahead` at each.
void FlipRanks(InstructionSet set, const ClassIndex& index, size_t c, const uint16_t* ranks,
               uint32_t count, uint64_t* mask, FetchAhead& ahead);

// Lists the numbers of the one bits among the first `size` bits of `words`, ascending, and returns
// their count. `numbers` has room for them and kNumbersSlack more.
uint32_t ListOnes(InstructionSet set, const uint64_t* words, uint32_t size, uint16_t* numbers);

namespace internal {
// IndexClasses variants are only for floats of 1 and 2 bytes.
void IndexClassesAvx2(const ClassIndexInput& input, ClassIndex& index);
void IndexClassesAvx512(const ClassIndexInput& input, ClassIndex& index);
void RankElementsAvx2(const ClassIndex& index, const uint16_t* positions, const uint8_t* classes,
                      uint32_t count, uint16_t* ranks);
void FlipRanksAvx512(const ClassIndex& index, size_t c, const uint16_t* ranks, uint32_t count,
                     uint64_t* mask, FetchAhead& ahead);
void SortByClassAvx512(const uint8_t* classes, const uint16_t* numbers, uint32_t count,
                       size_t class_count, uint32_t stride, uint16_t* sorted, uint32_t* sizes);
uint32_t ListOnesAvx512(const uint64_t* words, uint32_t size, uint16_t* numbers);
}  // namespace internal

}  // namespace dws::kernels
