// Counts the instructions of stages by single steps of the processor: hundreds of times slower than
// callgrind, but it knows every instruction that this processor has.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

namespace dws::bench {

// Runs `run` in a child process, whose stages (figures.h) are counted. Returns its exit status; 1:
// it was killed.
int CountSteps(const std::function<int()>& run);

// In such a child, the instructions between the two calls are counted. In other processes the calls
// do nothing.
void BeginSteps();
std::optional<uint64_t> EndSteps();

}  // namespace dws::bench
