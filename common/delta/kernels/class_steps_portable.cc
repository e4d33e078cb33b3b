// What the other variants are compared with.
#include <algorithm>

#include "common/base/check.h"
#include "common/delta/kernels/class_steps.h"

namespace dws::kernels {
namespace {

void ClassesOfPortable(const uint8_t* bytes, uint32_t count, const ClassTable& table,
                       uint8_t* classes) {
  for (uint32_t i = 0; i < count; ++i) classes[i] = static_cast<uint8_t>(ClassOf(table, bytes[i]));
}

void MaskBelowPortable(const uint8_t* bytes, uint32_t count, uint8_t limit, uint64_t* words) {
  for (uint32_t begin = 0; begin < count; begin += 64) {
    uint64_t word = 0;
    const uint32_t size = std::min<uint32_t>(count - begin, 64);
    for (uint32_t i = 0; i < size; ++i) word |= uint64_t{bytes[begin + i] < limit} << i;
    words[begin / 64] = word;
  }
}

uint64_t SumStepBitsPortable(const SizedSteps& steps, const HotScale& hot) {
  uint64_t bits = 0;
  for (size_t i = 0; i < steps.count; ++i) {
    const int width =
        std::clamp(int{hot.scale} - int{steps.bytes[i]}, 0, static_cast<int>(hot.width_max));
    const uint32_t quotient = std::min(steps.sizes[i] >> width, hot.quotient_max);
    bits += steps.bytes[i] < hot.below ? static_cast<uint32_t>(width) + 1 + quotient
                                       : steps.cold_bits[i];
  }
  return bits;
}

}  // namespace

void ClassesOf(InstructionSet set, const uint8_t* bytes, uint32_t count, const ClassTable& table,
               uint8_t* classes) {
#if defined(__x86_64__)
  if (set != InstructionSet::kPortable) {
    return internal::ClassesOfAvx2(bytes, count, table, classes);
  }
#endif
  ClassesOfPortable(bytes, count, table, classes);
}

void MaskBelow(InstructionSet set, const uint8_t* bytes, uint32_t count, uint8_t limit,
               uint64_t* words) {
#if defined(__x86_64__)
  if (set != InstructionSet::kPortable) {
    return internal::MaskBelowAvx2(bytes, count, limit, words);
  }
#endif
  MaskBelowPortable(bytes, count, limit, words);
}

uint64_t SumStepBits(InstructionSet set, const SizedSteps& steps, const HotScale& hot) {
  DWS_CHECK(steps.count % kStepGroup == 0);
#if defined(__x86_64__)
  if (set != InstructionSet::kPortable) return internal::SumStepBitsAvx2(steps, hot);
#endif
  return SumStepBitsPortable(steps, hot);
}

}  // namespace dws::kernels
