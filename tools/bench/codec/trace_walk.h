// A recorded trace, captured step by step.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/model/delta_profile.h"
#include "tools/bench/codec/sender_side.h"
#include "tools/bench/measure/workload.h"

namespace dws::bench {

// A step that has just been captured. Valid during the call.
struct TraceStep {
  std::string from;  // the steps' files, without their endings
  std::string to;
  const Placement& placement;
  ByteSpan before;  // the weights of the step before
  SenderSide& sender;
};

// Captures every step of the trace in `directory` in order, as in production: what a sender has
// learnt from earlier steps makes the later deltas smaller. Calls `first` after the first step and
// `each` after each other. Returns the tensors of the last two steps. Errors: as TraceFiles,
// ReadNextStep and the functions.
Result<std::vector<TensorPair>> WalkTrace(const std::string& directory, DeltaProfile profile,
                                          ThreadPool& pool,
                                          const std::function<Status(SenderSide&)>& first,
                                          const std::function<Status(const TraceStep&)>& each);

}  // namespace dws::bench
