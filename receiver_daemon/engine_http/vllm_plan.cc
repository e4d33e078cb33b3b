#include "receiver_daemon/engine_http/vllm_plan.h"

#include "common/base/check.h"

namespace dws {
namespace {

constexpr std::string_view kResetPrefix = "/reset_prefix_cache";
constexpr std::string_view kResetEncoder = "/reset_encoder_cache";

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
  // vLLM 0.32 drops everything that the old weights have computed: the prefix cache (also of
  // requests that it keeps), the KV connector's cache, and the encoder's. According to its
  // documentation it ignores clear_cache with mode keep, and other releases may do that. So the
  // endpoints are called too. (Except the connector's: without a connector, releases answer that
  // the call failed.)
  std::vector<EngineCall> calls = {
      {.endpoint = "/pause",
       .query = fmt::format("?mode={}&clear_cache=true", ToString(setup.mode))}};
  AskIsPaused(setup, true, calls);
  if (setup.Has(kResetPrefix)) {
    calls.push_back({.endpoint = std::string(kResetPrefix),
                     .query = "?reset_running_requests=true",
                     .form = ReplyForm::kAny,
                     .may_be_pending = true,
                     .advice = "blocks of the cache are still held"});
  }
  if (setup.Has(kResetEncoder)) {
    calls.push_back({.endpoint = std::string(kResetEncoder), .form = ReplyForm::kAny});
  }
  return calls;
}

std::vector<EngineCall> VllmReloadCalls(const EngineSetup& setup) {
  // With several workers vLLM stops at the first that fails, and takes the replies that the others
  // still give for those of its next call.
  return {
      {.endpoint = "/collective_rpc",
       .body =
           nlohmann::json{
               {"method", "reload_weights"},
               {"kwargs", {{"weights_path", setup.checkpoint}, {"is_checkpoint_format", true}}}},
       .form = ReplyForm::kAny,
       .repeat = Repeat::kUnsent,
       .refusal_is_final = true,
       .advice = "the engine stays paused until it is restarted"}};
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
