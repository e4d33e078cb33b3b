// P1, P2 and P25: the bytes of delta objects, against entropy and against other formats, and of
// parts of them.
#pragma once

#include "common/base/status.h"
#include "tools/bench/measure/options.h"
#include "tools/bench/measure/report.h"

namespace dws::bench {

// P1a: one tensor, independent changes of one step.
Status BenchSyntheticBytes(const Options& options, Report& report);

// P1b and P2: the last two steps of the trace `options.trace`, after all before them.
Status BenchTraceBytes(const Options& options, Report& report);

// P25: what a receiver of an engine with halves takes, against an object of these halves alone, for
// the last two steps of the trace.
Status BenchParts(const Options& options, Report& report);

}  // namespace dws::bench
