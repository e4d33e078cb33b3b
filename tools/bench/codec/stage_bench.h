// P4: how fast the receiver stages and commits a delta, against touching the same words.
#pragma once

#include "common/base/status.h"
#include "tools/bench/measure/options.h"
#include "tools/bench/measure/report.h"
#include "tools/bench/measure/workload.h"

namespace dws::bench {

Status BenchStage(const Options& options, const Workload& workload, Report& report);

}  // namespace dws::bench
