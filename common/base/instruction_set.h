// Which vector instructions this process uses. Kernels come in up to three variants that compute
// the same bytes; whoever calls one asks here which. A kernel's variants are marked by attribute,
// function by function: flags for a whole file would let an inline function of some header,
// compiled for a newer processor, become the one copy the linker keeps for everybody.
#pragma once

#include <cstdint>
#include <string_view>

// ThreadSanitizer leaves kernels alone: gcc 12 loses mask registers over the calls it puts before
// masked loads, and lanes that were to be left out are loaded.
#define DWS_TARGET_AVX2 __attribute__((target("avx2,bmi,bmi2,popcnt"), no_sanitize("thread")))
#define DWS_TARGET_AVX512                                                            \
  __attribute__((target("avx2,bmi,bmi2,popcnt,avx512f,avx512bw,avx512dq,avx512vl,"   \
                        "avx512vbmi,avx512vbmi2,avx512bitalg,avx512vpopcntdq,gfni"), \
                 no_sanitize("thread")))

namespace dws {

enum class InstructionSet : uint8_t {
  kPortable,
  kAvx2,    // with BMI1, BMI2, POPCNT
  kAvx512,  // F, BW, DQ, VL, VBMI, VBMI2, BITALG, VPOPCNTDQ, GFNI: Ice Lake, Zen 4 and newer
};

// The best set this machine has, or less when the environment's DWS_INSTRUCTION_SET is "portable"
// or "avx2" (another value, or a set the machine lacks, changes nothing). Read once.
InstructionSet ActiveInstructionSet();

// The best set this machine has: what a test compares with the others.
InstructionSet MachineInstructionSet();

// "portable", "avx2", "avx512".
std::string_view ToString(InstructionSet set);

}  // namespace dws
