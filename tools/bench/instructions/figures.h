// What the gate's program prints: CSV on stdout, and under callgrind one dump of counts for each
// stage.
#pragma once

#include <fmt/format.h>
#include <valgrind/callgrind.h>

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "tools/bench/instructions/step_count.h"

namespace dws::bench {

// What a figure is about.
struct Amount {
  uint64_t elements = 0;
  uint64_t changed = 0;  // of them
};

// Prints that the program was made or runs `with` something on which counts depend.
inline void PrintWith(const std::string& what, const std::string& value) {
  fmt::print("with,{},{},,\n", what, value);
}

inline void PrintBytes(const std::string& name, Amount amount, uint64_t bytes) {
  fmt::print("bytes,{},{},{},{}\n", name, bytes, amount.elements, amount.changed);
}

// Runs `run` as the stage `name`. Under callgrind with --instr-atstart=no, only the instructions of
// stages are counted. Otherwise it only calls `run`.
template <typename Run>
void CountStage(const std::string& name, Amount amount, Run&& run) {
  BeginSteps();
  CALLGRIND_START_INSTRUMENTATION;
  run();
  CALLGRIND_DUMP_STATS_AT(name.c_str());
  CALLGRIND_STOP_INSTRUMENTATION;  // forgets what was not dumped
  const std::optional<uint64_t> steps = EndSteps();
  fmt::print("stage,{},{},{},{}\n", name, steps.has_value() ? std::to_string(*steps) : "",
             amount.elements, amount.changed);
}

}  // namespace dws::bench
