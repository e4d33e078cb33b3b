// The calls to a vLLM server in its development mode, in order: pure lists.
#pragma once

#include <vector>

#include "common/model/weight_version.h"
#include "receiver_daemon/engine_http/engine_call.h"
#include "receiver_daemon/engine_http/engine_kind.h"

namespace dws {

// Pauses, checks that the engine is paused, and drops the caches of the old weights: requests that
// continue compute them again.
std::vector<EngineCall> VllmPauseCalls(const EngineSetup& setup);

// Loads the local checkpoint in all workers.
std::vector<EngineCall> VllmReloadCalls(const EngineSetup& setup);

// Sets the version. May be empty.
std::vector<EngineCall> VllmTellCalls(const EngineSetup& setup, WeightVersion version);

// Resumes, and checks that the engine is not paused.
std::vector<EngineCall> VllmResumeCalls(const EngineSetup& setup);

}  // namespace dws
