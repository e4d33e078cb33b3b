#include "receiver_daemon/engine_http/http_control.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "receiver_daemon/engine_http/sglang_plan.h"
#include "receiver_daemon/engine_http/vllm_plan.h"

namespace dws {
namespace {

std::vector<EngineCall> PauseCalls(const EngineSetup& setup) {
  switch (setup.kind) {
    case EngineKind::kSglang:
      return SglangPauseCalls(setup);
    case EngineKind::kVllm:
      return VllmPauseCalls(setup);
  }
  return {};
}

std::vector<EngineCall> ReloadCalls(const EngineSetup& setup, WeightVersion version) {
  switch (setup.kind) {
    case EngineKind::kSglang:
      return SglangReloadCalls(setup, version);
    case EngineKind::kVllm:
      return VllmReloadCalls(setup);
  }
  return {};
}

// Sets the version, and reads it back if the engine reports it.
std::vector<EngineCall> TellCalls(const EngineSetup& setup, WeightVersion version) {
  std::vector<EngineCall> calls;
  switch (setup.kind) {
    case EngineKind::kSglang:
      calls = SglangTellCalls(setup, version);
      break;
    case EngineKind::kVllm:
      calls = VllmTellCalls(setup, version);
      break;
  }
  if (setup.reports_version) {
    calls.push_back(
        {.method = HttpMethod::kGet,
         .endpoint = VersionEndpoint(setup.kind, setup.endpoints),
         .expected = ReplyField{.name = "weight_version", .value = std::to_string(version.value())},
         .advice = "is another process updating this engine?"});
  }
  return calls;
}

std::vector<EngineCall> ResumeCalls(const EngineSetup& setup) {
  switch (setup.kind) {
    case EngineKind::kSglang:
      return SglangResumeCalls(setup);
    case EngineKind::kVllm:
      return VllmResumeCalls(setup);
  }
  return {};
}

void LogProbe(const EngineProbe& probe, const HttpUrl& url, PauseMode mode) {
  LogInfo("engine_probed", {{"engine", ToString(probe.kind)},
                            {"url", url.ToString()},
                            {"mode", ToString(mode)},
                            {"endpoints", probe.endpoints.size()},
                            {"found_by", probe.by_options ? "OPTIONS" : "/openapi.json"},
                            {"weight_version", probe.weight_version.value_or("")}});
  for (const MissingEndpoint& missing : probe.missing) {
    LogWarning("engine_endpoint_missing", {{"engine", ToString(probe.kind)},
                                           {"endpoint", missing.endpoint},
                                           {"consequence", missing.consequence}});
  }
  if (mode == PauseMode::kInPlace) {
    LogWarning("engine_cache_is_stale",
               {{"engine", ToString(probe.kind)},
                {"consequence",
                 "mode in_place flushes no cache: requests, also new ones, use what older weights "
                 "computed"}});
  }
  if (probe.paused == true) {
    LogWarning("engine_found_paused", {{"engine", ToString(probe.kind)}, {"url", url.ToString()}});
  }
}

}  // namespace

HttpControl::HttpControl(std::unique_ptr<HttpClient> client, const EngineProbe& probe,
                         Options options)
    : client_(std::move(client)),
      options_(std::move(options)),
      setup_{.kind = probe.kind,
             .mode = options_.mode,
             .checkpoint = options_.checkpoint,
             .endpoints = probe.endpoints,
             // A vLLM that cannot be told a version always reports its first one.
             .reports_version = probe.weight_version.has_value() &&
                                (probe.kind == EngineKind::kSglang ||
                                 probe.endpoints.contains("/update_weight_version"))} {
  DWS_CHECK(client_ != nullptr);
  DWS_CHECK(!setup_.checkpoint.empty());
}

Status HttpControl::Name(const char* step, const Status& status) const {
  return Annotate(status, fmt::format("{} {}", step, ToString(setup_.kind)));
}

Status HttpControl::Run(const char* step, const std::vector<EngineCall>& calls, TimePoint deadline,
                        bool may_give_up) {
  const WaitScope wait(options_.liveness);
  for (const EngineCall& call : calls) {
    DWS_RETURN_IF_ERROR(Name(step, RunCall(*client_, call, deadline, may_give_up).status()));
  }
  return OkStatus();
}

TimePoint HttpControl::After(Duration timeout) const { return client_->clock().Now() + timeout; }

Status HttpControl::Pause(Duration timeout) {
  return Run("pausing", PauseCalls(setup_), After(timeout), true);
}

Status HttpControl::PostCommit(WeightVersion version, Duration timeout) {
  return Run("reloading", ReloadCalls(setup_, version), After(timeout), true);
}

Status HttpControl::Tell(WeightVersion version, Duration timeout) {
  return Run("telling the version to", TellCalls(setup_, version), After(timeout), true);
}

Status HttpControl::Reports(WeightVersion version, Duration timeout) {
  if (!setup_.reports_version) return EngineControl::Reports(version, timeout);
  std::vector<EngineCall> calls = {
      {.method = HttpMethod::kGet,
       .endpoint = VersionEndpoint(setup_.kind, setup_.endpoints),
       .expected = ReplyField{.name = "weight_version", .value = std::to_string(version.value())}}};
  if (setup_.Has("/is_paused")) {
    calls.push_back({.method = HttpMethod::kGet,
                     .endpoint = "/is_paused",
                     .expected = ReplyField{.name = "is_paused", .value = false}});
  }
  return Run("looking at", calls, After(timeout), true);
}

// This is not given up when the daemon stops: otherwise the engine would stay paused for good.
Status HttpControl::Resume(const EngineVersion&) {
  return Run("resuming", ResumeCalls(setup_), After(options_.resume_timeout), false);
}

Status HttpControl::Check(WeightVersion version, Duration timeout) {
  const WaitScope wait(options_.liveness);
  const std::string expected = std::to_string(version.value());
  EngineCall call{.method = HttpMethod::kGet, .endpoint = "/health", .form = ReplyForm::kAny};
  if (setup_.reports_version) {
    call.endpoint = VersionEndpoint(setup_.kind, setup_.endpoints);
    call.form = ReplyForm::kObject;
    call.expected = ReplyField{.name = "weight_version", .value = expected};
  }
  const Result<HttpAnswer> answer = client_->Send(
      call.ToHttp(), {.repeat = call.repeat, .deadline = client_->clock().Now() + timeout});
  DWS_RETURN_IF_ERROR(Name("looking at", answer.status()));
  // The engine answers, but does not report its version now.
  if (!setup_.reports_version || answer->code != 200) return OkStatus();
  const Status same = CheckReply(call, *answer).status();
  if (same.ok()) return same;
  return Name("looking at",
              MakeStatus(same.code(),
                         fmt::format("{}: {}; was it restarted, or is another process updating it?",
                                     client_->NameOf(call.ToHttp()), Message(same))));
}

Result<std::string> HttpControl::Checksum(Duration timeout) {
  // SGLang and vLLM have different names for it.
  const std::string endpoint =
      setup_.Has("/weights_checker") ? "/weights_checker" : "/weight_checker";
  if (!setup_.Has(endpoint)) {
    return UnimplementedError("this {} has no {}", ToString(setup_.kind), endpoint);
  }
  const WaitScope wait(options_.liveness);
  const EngineCall call{.endpoint = endpoint, .body = nlohmann::json{{"action", "checksum"}}};
  Result<nlohmann::json> reply = RunCall(*client_, call, After(timeout));
  if (!reply.ok()) return Name("checking", reply.status());
  // These fields may differ although the weights are equal.
  reply->erase("success");
  reply->erase("message");
  if (reply->empty()) {
    return Name("checking",
                FailedPreconditionError("{}: expected checksums, found none", endpoint));
  }
  return reply->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

Result<std::unique_ptr<HttpControl>> MakeHttpControl(HttpControlOptions options,
                                                     const Clock& clock) {
  if (options.checkpoint.empty()) {
    return InvalidArgumentError(
        "expected the folder of the engine's local checkpoint, found none: an engine reached over "
        "HTTP loads its weights from there");
  }
  ProbeWish wish{.kind = std::nullopt, .mode = options.mode};
  if (!options.kind.empty()) {
    DWS_ASSIGN_OR_RETURN(wish.kind, ParseEngineKind(options.kind));
    DWS_RETURN_IF_ERROR(ParsePauseMode(*wish.kind, options.mode).status());
  }
  DWS_ASSIGN_OR_RETURN(auto client, HttpClient::Create(std::move(options.client), clock));
  const WaitScope wait(options.liveness);
  DWS_ASSIGN_OR_RETURN(const EngineProbe probe,
                       ProbeEngine(*client, wish, clock.Now() + options.probe_timeout));
  DWS_ASSIGN_OR_RETURN(const PauseMode mode, ParsePauseMode(probe.kind, options.mode));
  LogProbe(probe, client->url(), mode);
  return std::make_unique<HttpControl>(
      std::move(client), probe,
      HttpControl::Options{.checkpoint = std::move(options.checkpoint),
                           .mode = mode,
                           .resume_timeout = options.resume_timeout,
                           .liveness = options.liveness});
}

}  // namespace dws
