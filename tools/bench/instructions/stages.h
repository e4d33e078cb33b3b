// Every stage of a delta on synthetic weights, once, on one thread: for counts of instructions.
#pragma once

#include <cstdint>

#include "common/base/status.h"

namespace dws::bench {

// Runs and prints the stages and sizes of two consecutive versions of `size_bytes` (a multiple of 1 MiB)
// of BF16 weights of which 1 % change, of two of which all change, and of a view of the first two.
// DATA_LOSS: a stage gave a wrong result.
Status CountStages(uint64_t size_bytes);

}  // namespace dws::bench
