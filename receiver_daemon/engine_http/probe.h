// What an engine's HTTP server can do, found out before it is controlled: which kind it is, which
// of the endpoints that the plans use exist, and what follows where one is missing.
//
// Asked is /openapi.json, which both engines have; where it is switched off each endpoint is asked
// for with OPTIONS, which changes nothing: 404 says that there is none.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "receiver_daemon/engine_http/engine_kind.h"
#include "receiver_daemon/engine_http/http_client.h"

namespace dws {

// An endpoint that the engine does not have, and what is done without it.
struct MissingEndpoint {
  std::string endpoint;
  std::string consequence;
};

struct EngineProbe {
  EngineKind kind = EngineKind::kSglang;
  EngineEndpoints endpoints;             // of those that are used
  std::vector<MissingEndpoint> missing;  // none that there is no way without
  bool by_options = false;               // it has no /openapi.json
  // What it says of itself; nullopt: it cannot say.
  std::optional<std::string> weight_version;
  std::optional<bool> paused;

  bool checks_weights() const { return endpoints.contains("/weights_checker"); }
};

struct ProbeWish {
  std::optional<EngineKind> kind = std::nullopt;  // nullopt: to be found out
  std::string mode = "";                          // as ParsePauseMode takes it
};

// FAILED_PRECONDITION, naming what is missing and what to do: it is neither engine, or not the one
// that was wished for, or has not what there is no way without. INVALID_ARGUMENT: it knows no such
// mode. UNAVAILABLE, DEADLINE_EXCEEDED and others of HttpClient::Send: it cannot be asked, now.
Result<EngineProbe> ProbeEngine(HttpClient& client, const ProbeWish& wish, TimePoint deadline);

// The pure part. FAILED_PRECONDITION as above.
Result<EngineProbe> JudgeEndpoints(const EngineEndpoints& found, std::optional<EngineKind> kind,
                                   std::string_view mode);

// All that is asked for, of both kinds.
EngineEndpoints UsedEndpoints();

}  // namespace dws
