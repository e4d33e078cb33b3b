#include "receiver_daemon/engine_http/probe.h"

#include <array>
#include <span>
#include <utility>

#include "common/base/check.h"
#include "receiver_daemon/engine_http/engine_call.h"

namespace dws {
namespace {

constexpr std::string_view kOpenApi = "/openapi.json";

// An endpoint that plans use.
struct UsedEndpoint {
  const char* path;
  const char* without;  // the consequence if it is missing; null: it is required
};

constexpr std::array kSglang = {
    UsedEndpoint{"/pause_generation", nullptr},
    UsedEndpoint{"/continue_generation", nullptr},
    UsedEndpoint{"/update_weights_from_disk", nullptr},
    UsedEndpoint{"/flush_cache", nullptr},  // not with kInPlace: see JudgeEndpoints
    UsedEndpoint{"/update_weight_version",
                 "the version is told by /update_weights_from_disk alone"},
    UsedEndpoint{"/model_info", "the version that the engine reports is not read back"},
    UsedEndpoint{"/get_model_info", ""},  // its older name, so nothing is reported as missing
    UsedEndpoint{"/weights_checker", "the engine cannot be asked for checksums of its weights"},
};
constexpr std::array kVllm = {
    UsedEndpoint{"/pause", nullptr},
    UsedEndpoint{"/resume", nullptr},
    UsedEndpoint{"/collective_rpc", nullptr},
    UsedEndpoint{"/is_paused", "whether the engine is paused is not read back"},
    UsedEndpoint{"/reset_prefix_cache", "the pause alone drops the prefix cache"},
    UsedEndpoint{"/reset_encoder_cache", "the pause alone drops the encoder's cache"},
    UsedEndpoint{"/update_weight_version", "the engine does not report weight versions"},
    UsedEndpoint{"/weight_info", "the version that the engine reports is not read back"},
    UsedEndpoint{"/weight_checker", "the engine cannot be asked for checksums of its weights"},
};

std::span<const UsedEndpoint> UsedOf(EngineKind kind) {
  switch (kind) {
    case EngineKind::kSglang:
      return kSglang;
    case EngineKind::kVllm:
      return kVllm;
  }
  return {};
}

// Each function looks at endpoints that the other kind never has. They suffice to name the engine
// even if it lacks the endpoints that are needed to control it.
bool IsSglang(const EngineEndpoints& found) {
  return found.contains("/pause_generation") || found.contains("/update_weights_from_disk") ||
         found.contains("/get_model_info");
}
bool IsVllm(const EngineEndpoints& found) {
  return found.contains("/collective_rpc") || found.contains("/pause");
}

const char* HowToGet(EngineKind kind) {
  switch (kind) {
    case EngineKind::kSglang:
      return "use a build of SGLang that has them";
    case EngineKind::kVllm:
      return "start vLLM with VLLM_SERVER_DEV_MODE=1, and take a build that has them";
  }
  return "";
}

Result<EngineKind> FindKind(const EngineEndpoints& found) {
  if (IsSglang(found) && !IsVllm(found)) return EngineKind::kSglang;
  if (IsVllm(found) && !IsSglang(found)) return EngineKind::kVllm;
  return FailedPreconditionError(
      "expected the endpoints of SGLang (/pause_generation) or of vLLM in its development mode "
      "(/pause, /collective_rpc), found {}: is it the engine's own address? vLLM has to be started "
      "with VLLM_SERVER_DEV_MODE=1",
      IsSglang(found) ? "both" : "neither");
}

// FastAPI lists each path under "paths".
std::optional<EngineEndpoints> PathsOf(const HttpAnswer& answer) {
  if (answer.code != 200) return std::nullopt;
  const std::optional<nlohmann::json> object = ParseObject(answer.body);
  if (!object.has_value()) return std::nullopt;
  const auto paths = object->find("paths");
  if (paths == object->end() || !paths->is_object()) return std::nullopt;
  EngineEndpoints found;
  for (const std::string& used : UsedEndpoints()) {
    if (paths->contains(used)) found.insert(used);
  }
  return found;
}

Result<EngineEndpoints> AskEach(HttpClient& client, const SendOptions& options) {
  EngineEndpoints found;
  for (const std::string& used : UsedEndpoints()) {
    const HttpCall call{.method = HttpMethod::kOptions, .target = used, .headers = {}, .body = ""};
    DWS_ASSIGN_OR_RETURN(const HttpAnswer answer, client.Send(call, options));
    if (answer.code >= 500) {
      return UnavailableError("{}: expected 405 or 404, found {}: {}", client.NameOf(call),
                              answer.code, Words(answer));
    }
    if (answer.code != 404) found.insert(used);
  }
  return found;
}

// In the builds that report a version it is a string.
std::optional<std::string> VersionOf(const nlohmann::json& reply) {
  const auto version = reply.find("weight_version");
  if (version == reply.end() || !version->is_string()) return std::nullopt;
  return version->get<std::string>().substr(0, limits::kEngineQuoteBytesMax);
}

Status AskState(HttpClient& client, EngineProbe& probe, TimePoint deadline) {
  if (probe.endpoints.contains("/is_paused")) {
    const EngineCall ask{.method = HttpMethod::kGet, .endpoint = "/is_paused"};
    DWS_ASSIGN_OR_RETURN(const nlohmann::json reply, RunCall(client, ask, deadline));
    const auto paused = reply.find("is_paused");
    if (paused != reply.end() && paused->is_boolean()) probe.paused = paused->get<bool>();
  }
  const EngineCall ask{.method = HttpMethod::kGet,
                       .endpoint = VersionEndpoint(probe.kind, probe.endpoints)};
  if (ask.endpoint.empty()) return OkStatus();
  DWS_ASSIGN_OR_RETURN(const nlohmann::json reply, RunCall(client, ask, deadline));
  probe.weight_version = VersionOf(reply);
  if (!probe.weight_version.has_value()) {
    probe.missing.push_back({.endpoint = ask.endpoint + " weight_version",
                             .consequence = "the version that the engine reports is not read "
                                            "back"});
  }
  return OkStatus();
}

}  // namespace

EngineEndpoints UsedEndpoints() {
  EngineEndpoints used;
  for (const UsedEndpoint& endpoint : kSglang) used.insert(endpoint.path);
  for (const UsedEndpoint& endpoint : kVllm) used.insert(endpoint.path);
  return used;
}

Result<EngineProbe> JudgeEndpoints(const EngineEndpoints& found, std::optional<EngineKind> kind,
                                   std::string_view mode) {
  if (!kind.has_value()) {
    DWS_ASSIGN_OR_RETURN(kind, FindKind(found));
  }
  EngineProbe probe{.kind = *kind, .endpoints = {}, .missing = {}};
  DWS_ASSIGN_OR_RETURN(const PauseMode pause_mode, ParsePauseMode(*kind, mode));
  std::string lacking;
  for (const UsedEndpoint& used : UsedOf(*kind)) {
    const std::string_view path = used.path;
    if (found.contains(path)) {
      probe.endpoints.insert(used.path);
      continue;
    }
    // With this mode requests continue with the old cache, so no flush is needed.
    if (path == "/flush_cache" && pause_mode == PauseMode::kInPlace) continue;
    // Some releases do not drop the cache in a pause that keeps requests.
    if (path == "/reset_prefix_cache" && pause_mode == PauseMode::kKeep) {
      lacking += fmt::format("{}{} (needed with mode keep)", lacking.empty() ? "" : ", ", path);
      continue;
    }
    if (path == "/model_info" && found.contains("/get_model_info")) continue;
    if (used.without == nullptr) {
      lacking += fmt::format("{}{}", lacking.empty() ? "" : ", ", path);
    } else if (used.without[0] != '\0') {
      probe.missing.push_back({.endpoint = used.path, .consequence = used.without});
    }
  }
  DWS_CHECK(!lacking.empty() || !probe.endpoints.empty());
  if (lacking.empty()) return probe;
  return FailedPreconditionError(
      "this {} has no {}: without that its weights cannot be updated; {}", ToString(*kind), lacking,
      HowToGet(*kind));
}

Result<EngineProbe> ProbeEngine(HttpClient& client, const ProbeWish& wish, TimePoint deadline) {
  const SendOptions options{.repeat = Repeat::kLost, .deadline = deadline};
  const HttpCall describe{
      .method = HttpMethod::kGet, .target = std::string(kOpenApi), .headers = {}, .body = ""};
  DWS_ASSIGN_OR_RETURN(const HttpAnswer answer, client.Send(describe, options));
  if (answer.code >= 500) {
    return UnavailableError("{}: expected what it can do, found {}: {}", client.NameOf(describe),
                            answer.code, Words(answer));
  }
  std::optional<EngineEndpoints> found = PathsOf(answer);
  const bool by_options = !found.has_value();
  if (by_options) {
    DWS_ASSIGN_OR_RETURN(found, AskEach(client, options));
  }
  Result<EngineProbe> probe = JudgeEndpoints(*found, wish.kind, wish.mode);
  if (!probe.ok()) return Annotate(probe.status(), client.url().ToString());
  DWS_CHECK(!wish.kind.has_value() || probe->kind == *wish.kind);
  probe->by_options = by_options;
  DWS_RETURN_IF_ERROR(AskState(client, *probe, deadline));
  return probe;
}

}  // namespace dws
