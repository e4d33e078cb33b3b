// P4: how fast the receiver stages and commits a delta, against touching the same words.
#pragma once

#include "common/base/status.h"
#include "tools/bench/options.h"
#include "tools/bench/report.h"
#include "tools/bench/workload.h"

namespace dws::bench {

Status BenchStage(const Options& options, const Workload& workload, Report& report);

}  // namespace dws::bench
