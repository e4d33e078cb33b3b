// The calls to an SGLang server, in order: pure lists.
#pragma once

#include <vector>

#include "common/model/weight_version.h"
#include "receiver_daemon/engine_http/engine_call.h"
#include "receiver_daemon/engine_http/engine_kind.h"

namespace dws {

// Pauses, then flushes the cache of the old weights. With kInPlace there is no flush: requests keep
// their cache.
std::vector<EngineCall> SglangPauseCalls(const EngineSetup& setup);

// Loads the local checkpoint.
std::vector<EngineCall> SglangReloadCalls(const EngineSetup& setup, WeightVersion version);

// Sets the version. May be empty.
std::vector<EngineCall> SglangTellCalls(const EngineSetup& setup, WeightVersion version);

std::vector<EngineCall> SglangResumeCalls(const EngineSetup& setup);

}  // namespace dws
