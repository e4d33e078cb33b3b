#include "receiver_daemon/engine_http/sglang_plan.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace dws {
namespace {

constexpr double kFlushWaitSecondsMax = 30;

// How long the server may wait for its requests and still answer in time. Whole seconds, which all
// builds accept, unless there is less than one.
std::string FlushQuery(Duration timeout) {
  const double wait = std::min(0.8 * ToSeconds(timeout), kFlushWaitSecondsMax);
  return wait >= 1 ? fmt::format("?timeout={:.0f}", std::floor(wait))
                   : fmt::format("?timeout={:.2f}", wait);
}

std::string FlushAdvice(PauseMode mode) {
  if (mode == PauseMode::kRetract) {
    return "requests that mode retract puts back into the queue can keep the cache from ever being "
           "flushed: pause with mode abort, or with in_place if they may go on with the old cache";
  }
  return "requests are still pending: abort them, or give the pause more time";
}

}  // namespace

std::string SglangInfoEndpoint(const EngineEndpoints& endpoints) {
  for (const char* name : {"/model_info", "/get_model_info"}) {
    if (endpoints.contains(name)) return name;
  }
  return "";
}

std::vector<EngineCall> SglangPauseCalls(const EngineSetup& setup, Duration timeout) {
  DWS_CHECK(setup.kind == EngineKind::kSglang);
  DWS_CHECK(setup.mode == PauseMode::kAbort || setup.mode == PauseMode::kRetract ||
            setup.mode == PauseMode::kInPlace);
  std::vector<EngineCall> calls = {
      {.endpoint = "/pause_generation", .body = nlohmann::json{{"mode", ToString(setup.mode)}}}};
  if (setup.mode == PauseMode::kInPlace) return calls;
  calls.push_back({.method = HttpMethod::kGet,
                   .endpoint = "/flush_cache",
                   .query = FlushQuery(timeout),
                   .form = ReplyForm::kAny,
                   .pending_is_400 = true,
                   .advice = FlushAdvice(setup.mode)});
  return calls;
}

std::vector<EngineCall> SglangReloadCalls(const EngineSetup& setup, WeightVersion version) {
  const std::string text = std::to_string(version.value());
  std::vector<EngineCall> calls = {
      {.endpoint = "/update_weights_from_disk",
       .body = nlohmann::json{{"model_path", setup.checkpoint},
                              {"weight_version", text},
                              {"flush_cache", setup.mode != PauseMode::kInPlace}},
       .form = ReplyForm::kSuccess,
       // A lost reply leaves open whether the load began, so the caller repeats the whole load.
       .repeat = Repeat::kUnsent,
       .advice = "the engine stays paused until a reload succeeds"}};
  if (setup.Has("/update_weight_version")) {
    // The flag's default, true, would abort all requests.
    calls.push_back({.endpoint = "/update_weight_version",
                     .body = nlohmann::json{{"new_version", text}, {"abort_all_requests", false}}});
  }
  if (setup.reports_version) {
    DWS_CHECK(!SglangInfoEndpoint(setup.endpoints).empty());  // it was read there
    calls.push_back({.method = HttpMethod::kGet,
                     .endpoint = SglangInfoEndpoint(setup.endpoints),
                     .expected = ReplyField{.name = "weight_version", .value = text},
                     .advice = "is another process updating this engine?"});
  }
  return calls;
}

std::vector<EngineCall> SglangResumeCalls(const EngineSetup&) {
  return {{.endpoint = "/continue_generation", .body = nlohmann::json::object()}};
}

}  // namespace dws
