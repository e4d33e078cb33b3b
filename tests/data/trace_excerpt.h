// The committed excerpt of a real training run (tests/data/rl_trace_excerpt/README.md), read by
// tests of the codec. Not a reader of traces in general: tools/bench/measure/trace.h is.
#pragma once

#include <cstdint>
#include <vector>

#include "common/model/layout.h"
#include "tests/common/delta/objects.h"

namespace dws::samples {

struct TraceExcerpt {
  RankLayout layout;            // one slice a tensor
  std::vector<uint32_t> steps;  // of the optimiser: 0, 1, 9, 10
  std::vector<State> states;    // after each of them
};

// Fails a CHECK when the files are not there or damaged. The test needs
// //tests/data:rl_trace_excerpt as data.
TraceExcerpt ReadTraceExcerpt();

}  // namespace dws::samples
