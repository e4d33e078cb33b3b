// What is asked of a vLLM server in its development mode, and in which order: pure lists of calls.
#pragma once

#include <vector>

#include "common/model/weight_version.h"
#include "receiver_daemon/engine_http/engine_call.h"
#include "receiver_daemon/engine_http/engine_kind.h"

namespace dws {

// Pauses, asks whether it is, and drops what was cached with the old weights: requests that go on
// compute it anew.
std::vector<EngineCall> VllmPauseCalls(const EngineSetup& setup);

// Loads the local checkpoint in all workers, tells which version it is.
std::vector<EngineCall> VllmReloadCalls(const EngineSetup& setup, WeightVersion version);

// Resumes, and asks whether it is.
std::vector<EngineCall> VllmResumeCalls(const EngineSetup& setup);

}  // namespace dws
