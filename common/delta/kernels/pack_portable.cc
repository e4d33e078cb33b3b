#include "common/delta/bits/element.h"
#include "common/delta/kernels/pack.h"

namespace dws::kernels {
namespace {

uint32_t GapBefore(const uint16_t* positions, uint32_t i) {
  return static_cast<uint16_t>(positions[i] - positions[i - 1] - 1);
}

}  // namespace

uint64_t SumGapQuotientsPortable(const uint16_t* positions, uint32_t count, uint32_t k) {
  uint64_t sum = positions[0] >> k;
  for (uint32_t i = 1; i < count; ++i) sum += GapBefore(positions, i) >> k;
  return sum;
}

void PackGapRemaindersPortable(const uint16_t* positions, uint32_t count, uint32_t k,
                               BitWriter& writer) {
  if (k == 0) return;
  const uint64_t mask = LowBits(k);
  writer.Put(positions[0] & mask, k);
  for (uint32_t i = 1; i < count; ++i) writer.Put(GapBefore(positions, i) & mask, k);
}

void PackGapQuotientsPortable(const uint16_t* positions, uint32_t count, uint32_t k,
                              BitWriter& writer) {
  writer.PutUnary(positions[0] >> k);
  for (uint32_t i = 1; i < count; ++i) writer.PutUnary(GapBefore(positions, i) >> k);
}

void ScanStepsPortable(const uint64_t* steps, uint32_t count, uint32_t element_bits,
                       StepScan& scan) {
  uint64_t signs = 0;
  uint32_t found = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const int64_t step = SignedStep(steps[i], element_bits);
    const uint64_t negative = step < 0 ? 1 : 0;
    signs |= negative << (i % 64);
    if (i % 64 == 63 || i + 1 == count) {
      scan.signs[i / 64] = signs;
      signs = 0;
    }
    // Without a branch: the processor cannot predict which steps are exceptions. Unsigned, the
    // magnitude of the most negative step is a number too.
    const uint64_t magnitude = (static_cast<uint64_t>(step) ^ (0 - negative)) + negative;
    scan.exceptions[found] = static_cast<uint16_t>(i);
    scan.magnitudes[found] = magnitude - 2;
    found += magnitude > 1 ? 1 : 0;
  }
  scan.exception_count = found;
}

uint64_t SumGapQuotients(InstructionSet set, const uint16_t* positions, uint32_t count,
                         uint32_t k) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return SumGapQuotientsAvx512(positions, count, k);
  if (set == InstructionSet::kAvx2) return SumGapQuotientsAvx2(positions, count, k);
#endif
  return SumGapQuotientsPortable(positions, count, k);
}

void PackGapRemainders(InstructionSet set, const uint16_t* positions, uint32_t count, uint32_t k,
                       BitWriter& writer) {
#if defined(__x86_64__)
  if (set != InstructionSet::kPortable) return PackGapRemaindersAvx2(positions, count, k, writer);
#endif
  return PackGapRemaindersPortable(positions, count, k, writer);
}

void PackGapQuotients(InstructionSet set, const uint16_t* positions, uint32_t count, uint32_t k,
                      BitWriter& writer) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return PackGapQuotientsAvx512(positions, count, k, writer);
  if (set == InstructionSet::kAvx2) return PackGapQuotientsAvx2(positions, count, k, writer);
#endif
  return PackGapQuotientsPortable(positions, count, k, writer);
}

void ScanSteps(InstructionSet set, const uint64_t* steps, uint32_t count, uint32_t element_bits,
               StepScan& scan) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return ScanStepsAvx512(steps, count, element_bits, scan);
  if (set == InstructionSet::kAvx2) return ScanStepsAvx2(steps, count, element_bits, scan);
#endif
  return ScanStepsPortable(steps, count, element_bits, scan);
}

}  // namespace dws::kernels
