// Which vector instructions this process uses. Kernels have up to three variants that compute the
// same bytes; the caller asks here which one to call. Each variant's functions carry a target
// attribute. Compiler flags for a whole file would be wrong: an inline function of a header would
// be compiled for a newer processor too, and the linker could keep that copy for every caller.
#pragma once

#include <cstdint>
#include <string_view>

// ThreadSanitizer does not instrument kernels: gcc 12 loses mask registers across the calls it puts
// before masked loads, and then loads lanes that the mask excludes.
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

// The best set this machine has, or a lesser one when the environment's DWS_INSTRUCTION_SET is
// "portable" or "avx2" (another value, or a set the machine lacks, changes nothing). Read once.
InstructionSet ActiveInstructionSet();

// The best set this machine has. Tests compare its results with the lesser sets'.
InstructionSet MachineInstructionSet();

// "portable", "avx2", "avx512".
std::string_view ToString(InstructionSet set);

}  // namespace dws
