#include "receiver_daemon/engine_http/vllm_plan.h"

#include "common/base/check.h"

namespace dws {
namespace {

constexpr std::string_view kReset = "/reset_prefix_cache";

void AskIsPaused(const EngineSetup& setup, bool expected, std::vector<EngineCall>& calls) {
  if (!setup.Has("/is_paused")) return;
  calls.push_back({.method = HttpMethod::kGet,
                   .endpoint = "/is_paused",
                   .expected = ReplyField{.name = "is_paused", .value = expected},
                   .advice = "is another process pausing and resuming this engine?"});
}

}  // namespace

std::vector<EngineCall> VllmPauseCalls(const EngineSetup& setup) {
  DWS_CHECK(setup.kind == EngineKind::kVllm);
  DWS_CHECK(setup.mode == PauseMode::kKeep || setup.mode == PauseMode::kWait ||
            setup.mode == PauseMode::kAbort);
  // If there is no endpoint that drops the cache, the pause has to drop it.
  std::vector<EngineCall> calls = {
      {.endpoint = "/pause",
       .query = fmt::format("?mode={}&clear_cache={}", ToString(setup.mode),
                            setup.Has(kReset) ? "false" : "true")}};
  AskIsPaused(setup, true, calls);
  if (setup.Has(kReset)) {
    calls.push_back({.endpoint = std::string(kReset),
                     .query = "?reset_running_requests=true",
                     .form = ReplyForm::kAny,
                     .may_be_pending = true,
                     .advice = "blocks of the cache are still held"});
  }
  return calls;
}

std::vector<EngineCall> VllmReloadCalls(const EngineSetup& setup) {
  return {
      {.endpoint = "/collective_rpc",
       .body =
           nlohmann::json{
               {"method", "reload_weights"},
               {"kwargs", {{"weights_path", setup.checkpoint}, {"is_checkpoint_format", true}}}},
       .form = ReplyForm::kAny,
       .repeat = Repeat::kUnsent,
       .advice = "the engine stays paused until a reload succeeds"}};
}

std::vector<EngineCall> VllmTellCalls(const EngineSetup& setup, WeightVersion version) {
  std::vector<EngineCall> calls;
  if (setup.Has("/update_weight_version")) {
    calls.push_back({.endpoint = "/update_weight_version",
                     .body = nlohmann::json{{"new_version", std::to_string(version.value())}}});
  }
  return calls;
}

std::vector<EngineCall> VllmResumeCalls(const EngineSetup& setup) {
  std::vector<EngineCall> calls = {{.endpoint = "/resume"}};
  AskIsPaused(setup, false, calls);
  return calls;
}

}  // namespace dws
