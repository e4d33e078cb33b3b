#include "receiver_daemon/engine_http/sglang_plan.h"

#include "common/base/check.h"

namespace dws {
namespace {

std::string FlushAdvice(PauseMode mode) {
  if (mode == PauseMode::kRetract) {
    return "in old builds requests that mode retract puts back into the queue keep the cache from "
           "being flushed: pause with mode abort, or with in_place if they may go on with the old "
           "cache";
  }
  return "requests are still pending: abort them, or give the pause more time";
}

}  // namespace

std::vector<EngineCall> SglangPauseCalls(const EngineSetup& setup) {
  DWS_CHECK(setup.kind == EngineKind::kSglang);
  DWS_CHECK(setup.mode == PauseMode::kAbort || setup.mode == PauseMode::kRetract ||
            setup.mode == PauseMode::kInPlace);
  std::vector<EngineCall> calls = {
      {.endpoint = "/pause_generation", .body = nlohmann::json{{"mode", ToString(setup.mode)}}}};
  if (setup.mode == PauseMode::kInPlace) return calls;
  // Without a query it looks once, and does not count requests that the pause holds back.
  calls.push_back({.method = HttpMethod::kGet,
                   .endpoint = "/flush_cache",
                   .form = ReplyForm::kAny,
                   .may_be_pending = true,
                   .advice = FlushAdvice(setup.mode)});
  return calls;
}

std::vector<EngineCall> SglangReloadCalls(const EngineSetup& setup, WeightVersion version) {
  const std::string text = std::to_string(version.value());
  return {{.endpoint = "/update_weights_from_disk",
           .body = nlohmann::json{{"model_path", setup.checkpoint},
                                  {"weight_version", text},
                                  {"flush_cache", setup.mode != PauseMode::kInPlace}},
           .form = ReplyForm::kSuccess,
           // A lost reply leaves open whether the load began, so the caller repeats the whole load.
           .repeat = Repeat::kUnsent,
           .advice = "the engine stays paused until a reload succeeds"}};
}

std::vector<EngineCall> SglangTellCalls(const EngineSetup& setup, WeightVersion version) {
  const std::string text = std::to_string(version.value());
  std::vector<EngineCall> calls;
  if (setup.Has("/update_weight_version")) {
    // The flag's default, true, would abort all requests.
    calls.push_back({.endpoint = "/update_weight_version",
                     .body = nlohmann::json{{"new_version", text}, {"abort_all_requests", false}}});
  }
  return calls;
}

std::vector<EngineCall> SglangResumeCalls(const EngineSetup&) {
  return {{.endpoint = "/continue_generation", .body = nlohmann::json::object()}};
}

}  // namespace dws
