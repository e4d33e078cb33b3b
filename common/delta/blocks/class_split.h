// Mode B: positions as ranks inside classes of the old magnitude (FORMAT.md, "Mode 3:
// class-split"). Both sides need the old block. In return positions cost fewer bits: an element's
// old magnitude already tells how likely it changes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/delta/blocks/block.h"
#include "common/delta/blocks/exceptions.h"
#include "common/delta/blocks/hot_magnitudes.h"
#include "common/delta/blocks/positions.h"
#include "common/delta/blocks/split_rice.h"
#include "common/delta/kernels/class_index.h"
#include "common/model/class_table.h"
#include "common/model/tensor_spec.h"

namespace dws {

// Returns whether blocks of `dtype` may be class-split by `table`: `dtype` is a float type, and no
// number of the table is above its largest magnitude byte.
bool TableFits(const ClassTable& table, DType dtype);

// Returns `table` for updates 2^shift times as large: adds `shift` to every number in it. nullopt:
// one of them would be out of range.
std::optional<ClassTable> ShiftTable(const ClassTable& table, int shift, DType dtype);

// How one block is class-split, with the exact cost. Reused for the next blocks to keep its memory.
struct ClassSplitPlan {
  struct Class {
    GapCoding gaps;
    bool inverted = false;  // the ranks are those of the elements that do not change
    std::span<const uint16_t> ranks;
  };
  std::array<Class, kClassesMax> classes;
  uint32_t count_bits = 1;  // of a class's count
  int shift = 0;            // of the table, for this block
  ClassTable table;         // shifted
  HotMagnitudes hot;
  std::vector<uint16_t> exceptions;  // changed elements that are not hot and whose step is not +-1
  std::vector<uint64_t> magnitudes;  // |step| - 2 of each exception
  ExceptionCoding exception_coding;  // meaningless without exceptions
  uint64_t bits = 0;

  uint64_t PayloadBytes() const { return CeilDiv(bits, 8); }

  // Scratch of the planner, and the memory of the spans.
  std::vector<uint8_t> magnitude_bytes;  // of the changed elements, before the change
  std::vector<uint8_t> class_numbers;    // of the same
  std::vector<uint32_t> sizes;           // |step| - 1 of the first of them
  std::vector<uint32_t> cold_bits;       // what each of these sizes costs if it is not hot
  std::vector<uint32_t> hot_before;      // hot changes before each word of hot.mask
  std::vector<uint16_t> ranks;
  std::vector<uint16_t> scratch;
  std::vector<uint64_t> rank_mask;  // a bit for each rank that a class does not change
  kernels::ClassIndex index;
};

// `changes` is not empty, `split_rice` is their plan in mode A, `before` is the block they change,
// and `table` fits `dtype`.
void PlanClassSplit(DType dtype, const BlockChanges& changes, const SplitRicePlan& split_rice,
                    ByteSpan before, const ClassTable& table, ClassSplitPlan& plan);
EncodedBlock WriteClassSplit(const BlockChanges& changes, const SplitRicePlan& split_rice,
                             const ClassSplitPlan& plan);

// Fills positions and steps. `block.nnz` is between 1 and the number of elements of `before`.
// DATA_LOSS says which plane is damaged.
Status ReadClassSplit(DType dtype, const EncodedBlockView& block, const ClassTable& table,
                      ByteSpan before, DecodedBlock& decoded);

// Layout of the parameters and of a class's head.
namespace class_split {
inline constexpr uint32_t kCountWidthBits = 4;  // count_bits - 1
inline constexpr uint32_t kExceptionsFlag = 1u << 4;
inline constexpr uint32_t kEscapeShift = 5;
inline constexpr uint32_t kEscapeWidthBits = 7;
inline constexpr uint32_t kShiftShift = 12;
inline constexpr int kShiftBias = 8;
inline constexpr uint32_t kInvertedFlag = 1u << GapCoding::kParameterBits;
inline constexpr uint32_t kCodeBits = GapCoding::kParameterBits + 1;
}  // namespace class_split

}  // namespace dws
