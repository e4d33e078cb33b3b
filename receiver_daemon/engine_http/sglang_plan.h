// What is asked of an SGLang server, and in which order: pure lists of calls.
#pragma once

#include <vector>

#include "common/base/clock.h"
#include "common/model/weight_version.h"
#include "receiver_daemon/engine_http/engine_call.h"
#include "receiver_daemon/engine_http/engine_kind.h"

namespace dws {

// Pauses; then flushes what was cached with the old weights, for which there is `timeout` in all.
// Not with kInPlace, whose requests keep their cache.
std::vector<EngineCall> SglangPauseCalls(const EngineSetup& setup, Duration timeout);

// Loads the local checkpoint, tells which version it is, reads that back.
std::vector<EngineCall> SglangReloadCalls(const EngineSetup& setup, WeightVersion version);

std::vector<EngineCall> SglangResumeCalls(const EngineSetup& setup);

// What a build of SGLang calls it; "": it has none.
std::string SglangInfoEndpoint(const EngineEndpoints& endpoints);

}  // namespace dws
