// The sizes of all deltas of a recorded trace.
#pragma once

#include <string>

#include "common/base/status.h"

namespace dws::bench {

// Captures every step of the trace in `directory` in order and prints what its delta weighs: in
// profile fast, in profile wan, and as each view. Errors: as TraceFiles and ReadNextStep.
// DATA_LOSS: a delta does not lead to the next step.
Status PrintTraceBytes(const std::string& directory);

}  // namespace dws::bench
