// The calls to an SGLang server, in order: pure lists.
#pragma once

#include <vector>

#include "common/base/clock.h"
#include "common/model/weight_version.h"
#include "receiver_daemon/engine_http/engine_call.h"
#include "receiver_daemon/engine_http/engine_kind.h"

namespace dws {

// Pauses, then flushes the cache of the old weights; both have `timeout` together. With kInPlace
// there is no flush: requests keep their cache.
std::vector<EngineCall> SglangPauseCalls(const EngineSetup& setup, Duration timeout);

// Loads the local checkpoint, sets the version, and reads it back where the engine reports it.
std::vector<EngineCall> SglangReloadCalls(const EngineSetup& setup, WeightVersion version);

std::vector<EngineCall> SglangResumeCalls(const EngineSetup& setup);

// The endpoint that reports the weight version, whose name differs by build; "": there is none.
std::string SglangInfoEndpoint(const EngineEndpoints& endpoints);

}  // namespace dws
