// The rollout engines that can be controlled over HTTP, how they may be paused, and the facts that
// were found out about one of them. Values only.
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

// What happens to the requests that an engine is working on when it is paused.
enum class PauseMode : uint8_t {
  kAbort,    // both: requests end with the tokens they have
  kRetract,  // SGLang: they continue, their cache is computed again
  kInPlace,  // SGLang: they continue, and later ones begin, with the cache of the old weights
  kKeep,     // vLLM: they continue, their cache is computed again
  kWait,     // vLLM: the pause waits until they are done
};
const char* ToString(PauseMode mode);  // as the engine calls it: "in_place"
// "" is SGLang's "retract" or vLLM's "keep". INVALID_ARGUMENT: not a mode of `kind`; lists those.
Result<PauseMode> ParsePauseMode(EngineKind kind, std::string_view text);

// Endpoints that the engine is known to have.
using EngineEndpoints = std::set<std::string, std::less<>>;

// The engine that a plan is made for.
struct EngineSetup {
  EngineKind kind = EngineKind::kSglang;
  PauseMode mode = PauseMode::kAbort;
  std::string checkpoint;  // the local checkpoint's folder, with the path that the engine uses
  EngineEndpoints endpoints;
  bool reports_version = false;  // VersionEndpoint has "weight_version"

  bool Has(std::string_view endpoint) const { return endpoints.contains(endpoint); }
};

// Returns where an engine reports its weight version: one of `endpoints`, or "".
std::string VersionEndpoint(EngineKind kind, const EngineEndpoints& endpoints);

}  // namespace dws
