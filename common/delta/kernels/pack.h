// The inner loops of mode A's encoder: costs and planes of gaps, signs and exceptions of steps. One
// variant for each instruction set; all write the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/instruction_set.h"
#include "common/delta/bits/bit_stream.h"

namespace dws::kernels {

// Gaps are those of FORMAT.md, "Gaps", between `count` strictly ascending positions; count is not
// 0. In all functions the machine must support `set`.

// The sum of gap >> k over all gaps, k below 16.
uint64_t SumGapQuotients(InstructionSet set, const uint16_t* positions, uint32_t count, uint32_t k);
// The plane of remainders, k bits each, k below 16.
void PackGapRemainders(InstructionSet set, const uint16_t* positions, uint32_t count, uint32_t k,
                       BitWriter& writer);
// The plane of quotients, gap >> k in unary.
void PackGapQuotients(InstructionSet set, const uint16_t* positions, uint32_t count, uint32_t k,
                      BitWriter& writer);

// The result of ScanSteps.
struct StepScan {
  // Entries of the arrays after the result that ScanSteps may overwrite.
  static constexpr size_t kSlack = 8;

  uint64_t* signs = nullptr;       // a bit for each step, 1 when negative; written in whole words
  uint16_t* exceptions = nullptr;  // numbers of the steps other than -1 and 1
  uint64_t* magnitudes = nullptr;  // |step| - 2 of the same
  uint32_t exception_count = 0;
};

// Scans `count` steps of `element_bits` bits each, none of which is zero. The arrays of `scan` have
// room for all steps and kSlack more entries, `signs` for a bit each, rounded up to words.
void ScanSteps(InstructionSet set, const uint64_t* steps, uint32_t count, uint32_t element_bits,
               StepScan& scan);

// The variants.
uint64_t SumGapQuotientsPortable(const uint16_t* positions, uint32_t count, uint32_t k);
uint64_t SumGapQuotientsAvx2(const uint16_t* positions, uint32_t count, uint32_t k);
uint64_t SumGapQuotientsAvx512(const uint16_t* positions, uint32_t count, uint32_t k);
void PackGapRemaindersPortable(const uint16_t* positions, uint32_t count, uint32_t k,
                               BitWriter& writer);
void PackGapRemaindersAvx2(const uint16_t* positions, uint32_t count, uint32_t k,
                           BitWriter& writer);
void PackGapQuotientsPortable(const uint16_t* positions, uint32_t count, uint32_t k,
                              BitWriter& writer);
void PackGapQuotientsAvx2(const uint16_t* positions, uint32_t count, uint32_t k, BitWriter& writer);
void PackGapQuotientsAvx512(const uint16_t* positions, uint32_t count, uint32_t k,
                            BitWriter& writer);
void ScanStepsPortable(const uint64_t* steps, uint32_t count, uint32_t element_bits,
                       StepScan& scan);
void ScanStepsAvx2(const uint64_t* steps, uint32_t count, uint32_t element_bits, StepScan& scan);
void ScanStepsAvx512(const uint64_t* steps, uint32_t count, uint32_t element_bits, StepScan& scan);

}  // namespace dws::kernels
