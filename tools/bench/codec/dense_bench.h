// Dense and hostile changes: whole tensors at the speed of memcpy, and objects that never get much
// larger than the weights.
#pragma once

#include "common/base/status.h"
#include "tools/bench/measure/options.h"
#include "tools/bench/measure/report.h"

namespace dws::bench {

// Full tensors, dense raw: what a repair sends and writes.
Status BenchFullTensors(const Options& options, Report& report);
// The objects of changes that no sparse code likes.
Status BenchDenseSizes(const Options& options, Report& report);

}  // namespace dws::bench
