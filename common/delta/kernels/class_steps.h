// The inner loops over the changes of a class-split block (FORMAT.md, "Mode 3"): their classes,
// which of them are hot, and what their sizes cost with a class table. The variants for several
// instruction sets give the same results.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/instruction_set.h"
#include "common/model/class_table.h"

namespace dws::kernels {

// Fills classes[i] with the class of an element whose magnitude byte is bytes[i] (ClassOf).
void ClassesOf(InstructionSet set, const uint8_t* bytes, uint32_t count, const ClassTable& table,
               uint8_t* classes);

// Bit i % 64 of words[i / 64] says whether bytes[i] is below `limit`. Bits after `count` are 0.
void MaskBelow(InstructionSet set, const uint8_t* bytes, uint32_t count, uint8_t limit,
               uint64_t* words);

// Steps as parallel arrays. They are padded to a multiple of kStepGroup with byte 255 and 0
// otherwise.
inline constexpr size_t kStepGroup = 8;
struct SizedSteps {
  const uint8_t* bytes = nullptr;       // magnitude bytes of the old elements
  const uint32_t* sizes = nullptr;      // |step| - 1; what does not fit is the largest
  const uint32_t* cold_bits = nullptr;  // what each size costs if the step is not hot
  size_t count = 0;                     // a multiple of kStepGroup
};

// The Rice parameter of a hot step is scale - byte, from 0 to width_max, which is below 32.
struct HotScale {
  uint8_t below = 0;  // bytes below are hot
  uint8_t scale = 0;
  uint32_t width_max = 0;
  uint32_t quotient_max = 0;  // larger quotients are cut to this
};

// The bits that the sizes cost, with one for the end of each hot quotient.
uint64_t SumStepBits(InstructionSet set, const SizedSteps& steps, const HotScale& hot);

namespace internal {
void ClassesOfAvx2(const uint8_t* bytes, uint32_t count, const ClassTable& table, uint8_t* classes);
void MaskBelowAvx2(const uint8_t* bytes, uint32_t count, uint8_t limit, uint64_t* words);
uint64_t SumStepBitsAvx2(const SizedSteps& steps, const HotScale& hot);
}  // namespace internal

}  // namespace dws::kernels
