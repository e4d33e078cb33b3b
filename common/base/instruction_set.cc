#include "common/base/instruction_set.h"

#include <algorithm>
#include <cstdlib>

namespace dws {
namespace {

// The variable can only lower the set, so that tests run the other kernels on any machine.
InstructionSet Allowed() {
  const char* const value = std::getenv("DWS_INSTRUCTION_SET");
  const std::string_view name = value == nullptr ? "" : value;
  for (const InstructionSet set : {InstructionSet::kPortable, InstructionSet::kAvx2}) {
    if (name == ToString(set)) return set;
  }
  return InstructionSet::kAvx512;
}

}  // namespace

InstructionSet MachineInstructionSet() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("bmi") != 0 &&
                    __builtin_cpu_supports("bmi2") != 0 && __builtin_cpu_supports("popcnt") != 0;
  const bool avx512 =
      avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
      __builtin_cpu_supports("avx512vbmi") != 0 && __builtin_cpu_supports("avx512vbmi2") != 0 &&
      __builtin_cpu_supports("avx512bitalg") != 0 &&
      __builtin_cpu_supports("avx512vpopcntdq") != 0 && __builtin_cpu_supports("gfni") != 0;
  // One bit for all of AVX-512: kernels may use every extension listed above without asking again.
  if (avx512) return InstructionSet::kAvx512;
  if (avx2) return InstructionSet::kAvx2;
#endif
  return InstructionSet::kPortable;
}

InstructionSet ActiveInstructionSet() {
  static const InstructionSet active = std::min(MachineInstructionSet(), Allowed());
  return active;
}

std::string_view ToString(InstructionSet set) {
  switch (set) {
    case InstructionSet::kPortable:
      return "portable";
    case InstructionSet::kAvx2:
      return "avx2";
    case InstructionSet::kAvx512:
      return "avx512";
  }
  return "unknown";
}

}  // namespace dws
