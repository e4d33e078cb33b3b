// The inner loops that add gradients, one variant for each instruction set. All variants compute
// the same bits, except that a NaN is some NaN. accumulators.cc uses the set of this process; tests
// use every set.
//
// Arithmetic is that of IEEE 754, rounded to nearest even, with subnormals: the caller sees to the
// processor's mode (common/base/float_environment.h).
#pragma once

#include <cstddef>

#include "common/base/instruction_set.h"

namespace dws {

// The loops for one element type of pieces. Sums begin at a multiple of 64 bytes; pieces begin
// anywhere. The memory of a sum and that of a piece do not overlap. `count` is in elements.
struct AddLoops {
  // FP32 sum = piece. It goes past the cache, and is visible to other threads on return.
  void (*store)(std::byte* sum, const std::byte* piece, size_t count);
  // FP32 sum += piece.
  void (*add)(std::byte* sum, const std::byte* piece, size_t count);
  // FP64 sum = piece, like `store`.
  void (*store_exact)(std::byte* sum, const std::byte* piece, size_t count);
  // FP64 sum += piece. Returns whether some finite sum was rounded.
  bool (*add_exact)(std::byte* sum, const std::byte* piece, size_t count);
};

// Plain values: functions that the machine can run.
struct AddKernels {
  AddLoops bf16;
  AddLoops fp32;
  AddLoops fp64;  // to FP64 sums only: `store` and `add` are null
  // Returns the sum of the squares of FP32 values, in FP64. Element i is added to lane i mod 16, in
  // ascending order; then lanes 8 apart are added, 4 apart, 2 and 1. A square of FP32 values is
  // exact in FP64, and no sum of fewer than 2^64 of them overflows: the result is finite if and
  // only if all values are. `values` begins at a multiple of 64 bytes.
  double (*sum_of_squares)(const std::byte* values, size_t count);
  // Rounds FP64 values to FP32. Both begin at multiples of 64 bytes. `to` may be `from` or lie
  // before it, and may then overlap it.
  void (*round)(std::byte* to, const std::byte* from, size_t count);
};

// The machine must support `set`.
const AddKernels& AddKernelsFor(InstructionSet set);

// The variants.
extern const AddKernels kAddKernelsPortable;
extern const AddKernels kAddKernelsAvx2;
extern const AddKernels kAddKernelsAvx512;

}  // namespace dws
