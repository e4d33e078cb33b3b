// Finds out what an engine's HTTP server can do before it is controlled: which kind of engine it
// is, which of the endpoints that the plans use exist, and the consequence of each missing one.
//
// Reads /openapi.json, which both engines have. If that is switched off, asks for each endpoint
// with OPTIONS, which changes nothing: 404 means that the endpoint does not exist.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "receiver_daemon/engine_http/engine_kind.h"
#include "receiver_daemon/engine_http/http_client.h"

namespace dws {

// An optional endpoint that the engine does not have, and the consequence.
struct MissingEndpoint {
  std::string endpoint;
  std::string consequence;
};

// What was found out about an engine.
struct EngineProbe {
  EngineKind kind = EngineKind::kSglang;
  EngineEndpoints endpoints;             // of UsedEndpoints
  std::vector<MissingEndpoint> missing;  // optional ones
  bool by_options = false;               // the engine has no /openapi.json
  // The values that the engine reports; nullopt: it does not report them.
  std::optional<std::string> weight_version;
  std::optional<bool> paused;
};

// What the caller wants of the engine.
struct ProbeWish {
  std::optional<EngineKind> kind = std::nullopt;  // nullopt: find out
  std::string mode = "";                          // in the form that ParsePauseMode takes
};

// FAILED_PRECONDITION: it is neither engine, or lacks endpoints that an engine of the wanted kind
// needs; the message names them and what to do. INVALID_ARGUMENT: it does not have this mode.
// UNAVAILABLE, DEADLINE_EXCEEDED and other errors of HttpClient::Send: it does not answer now.
Result<EngineProbe> ProbeEngine(HttpClient& client, const ProbeWish& wish, TimePoint deadline);

// The pure part of ProbeEngine. Errors as above.
Result<EngineProbe> JudgeEndpoints(const EngineEndpoints& found, std::optional<EngineKind> kind,
                                   std::string_view mode);

// All endpoints that plans use, of both kinds of engines.
EngineEndpoints UsedEndpoints();

}  // namespace dws
