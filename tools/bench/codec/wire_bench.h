// P1 and P2: the bytes of whole delta objects, against entropy and against other formats.
#pragma once

#include "common/base/status.h"
#include "tools/bench/measure/options.h"
#include "tools/bench/measure/report.h"

namespace dws::bench {

// P1a: one tensor, independent changes of one step.
Status BenchSyntheticBytes(const Options& options, Report& report);

// P1b and P2: the last two steps of the trace `options.trace`, after all before them.
Status BenchTraceBytes(const Options& options, Report& report);

}  // namespace dws::bench
