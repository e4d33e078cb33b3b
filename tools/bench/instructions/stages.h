// Every stage of a delta on synthetic weights, once, on one thread: for counts of instructions.
#pragma once

#include <cstdint>

#include "common/base/status.h"

namespace dws::bench {

// Run and print the stages and sizes of two consecutive versions of `size_bytes` (whole blocks) of
// BF16 weights. DATA_LOSS: a stage gave a wrong result.

// 1 % of the elements change; and of a view of both versions.
Status CountSparseStages(uint64_t size_bytes);
// All change.
Status CountDenseStages(uint64_t size_bytes);

}  // namespace dws::bench
