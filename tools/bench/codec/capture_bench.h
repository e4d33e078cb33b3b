// P3: how fast the sender captures a version, against reading the same memory.
#pragma once

#include "common/base/status.h"
#include "tools/bench/measure/options.h"
#include "tools/bench/measure/report.h"
#include "tools/bench/measure/workload.h"

namespace dws::bench {

Status BenchCapture(const Options& options, const Workload& workload, Report& report);

}  // namespace dws::bench
