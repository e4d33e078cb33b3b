// Measures the references of the daemons' figures on request: the part of the benchmark that
// measures daemons asks between two of its own measurements, so that both see the same machine.
#pragma once

#include "common/base/status.h"
#include "tools/bench/measure/options.h"
#include "tools/bench/measure/workload.h"

namespace dws::bench {

// Answers lines on stdin with seconds on stdout: "capture N" and "commit N", with N threads (P3's
// and P4c's work on `workload`), until the input ends. Prints "ready" first.
Status ServeProbe(const Workload& workload);

}  // namespace dws::bench
