// Mode B: positions as ranks inside classes of the old magnitude (FORMAT.md,
// "Mode 3: class-split"). Needs the old block on both sides, and pays for it:
// where an element's chance to change follows from its size, most of its
// position is known already.
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

// Whether blocks of `dtype` may be class-split by `table`: floats, no number
// out of their reach.
bool TableFits(const ClassTable& table, DType dtype);

// `table` for updates 2^shift times as large: every magnitude in it is shifted.
// nullopt: one of them would be out of reach.
std::optional<ClassTable> ShiftTable(const ClassTable& table, int shift, DType dtype);

// How one block is class-split, with the exact cost. Reused from block to block
// to keep its memory.
struct ClassSplitPlan {
  struct Class {
    GapCoding gaps;
    bool inverted = false;  // the ranks are of those that do not change
    std::span<const uint16_t> ranks;
  };
  std::array<Class, kClassesMax> classes;
  uint32_t count_bits = 1;  // of a class's count
  int shift = 0;            // of the table, for this block
  ClassTable table;         // shifted
  HotMagnitudes hot;
  std::vector<uint16_t> exceptions;  // changes, not hot, whose step is not +-1
  std::vector<uint64_t> magnitudes;  // |step| - 2 of each exception
  ExceptionCoding exception_coding;  // meaningless without exceptions
  uint64_t bits = 0;

  uint64_t PayloadBytes() const { return CeilDiv(bits, 8); }

  // The planner's own, and what the spans look into.
  std::vector<uint8_t> magnitude_bytes;  // of the changed elements, before
  std::vector<uint8_t> class_numbers;    // of the same
  std::vector<uint16_t> ranks;
  std::vector<uint16_t> scratch;
  kernels::ClassIndex index;
};

// `changes` is not empty, `split_rice` their plan in mode A, `before` the block
// they change; `table` fits `dtype`.
void PlanClassSplit(DType dtype, const BlockChanges& changes, const SplitRicePlan& split_rice,
                    ByteSpan before, const ClassTable& table, ClassSplitPlan& plan);
EncodedBlock WriteClassSplit(const BlockChanges& changes, const SplitRicePlan& split_rice,
                             const ClassSplitPlan& plan);

// Fills positions and steps. `block.nnz` is 1 to the elements of `before`.
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
