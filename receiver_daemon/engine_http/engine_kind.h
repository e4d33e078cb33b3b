// The rollout engines that can be controlled over HTTP, how they may be paused, and what was found
// of an engine: values.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace dws {

enum class EngineKind : uint8_t { kSglang, kVllm };
const char* ToString(EngineKind kind);  // "SGLang"
// INVALID_ARGUMENT unless "sglang" or "vllm".
Result<EngineKind> ParseEngineKind(std::string_view text);

// What becomes of the requests that an engine is working on when it is paused.
enum class PauseMode : uint8_t {
  kAbort,    // both: they end, with what they have
  kRetract,  // SGLang: they start again from their tokens; may keep the cache from being flushed
  kInPlace,  // SGLang: they go on, with the cache of the old weights
  kKeep,     // vLLM: they go on, their cache is computed anew
  kWait,     // vLLM: the pause waits until they are done
};
const char* ToString(PauseMode mode);  // as the engine calls it: "in_place"
// "": SGLang's "abort", vLLM's "keep". INVALID_ARGUMENT, with the modes of `kind`.
Result<PauseMode> ParsePauseMode(EngineKind kind, std::string_view text);

// Those of the engine's endpoints that are known to exist.
using EngineEndpoints = std::set<std::string, std::less<>>;

// What a plan is made for.
struct EngineSetup {
  EngineKind kind = EngineKind::kSglang;
  PauseMode mode = PauseMode::kAbort;
  std::string checkpoint;  // the local checkpoint's folder, as the engine finds it
  EngineEndpoints endpoints;
  bool reports_version = false;  // its model_info has "weight_version"

  bool Has(std::string_view endpoint) const { return endpoints.contains(endpoint); }
};

}  // namespace dws
