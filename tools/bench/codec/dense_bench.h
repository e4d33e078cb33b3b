// Dense and hostile changes: whole tensors at the speed of memcpy, and objects that never get much
// larger than the weights.
#pragma once

#include "common/base/status.h"
#include "tools/bench/measure/options.h"
#include "tools/bench/measure/report.h"

namespace dws::bench {

// Full tensors, dense raw: the bytes that a repair sends and writes.
Status BenchFullTensors(const Options& options, Report& report);
// The size of objects for changes that suit no sparse code.
Status BenchDenseSizes(const Options& options, Report& report);

}  // namespace dws::bench
