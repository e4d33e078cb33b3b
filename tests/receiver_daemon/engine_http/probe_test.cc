// What the probe learns about an engine before controlling it.
#include "receiver_daemon/engine_http/probe.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

#include "tests/receiver_daemon/engine_http/http_fixture.h"

namespace dws {
namespace {

Result<EngineProbe> Probe(const HttpFixture& job, const ProbeWish& wish = {},
                          Duration timeout = kAmple) {
  const auto client = HttpClient::Create({.url = job.server->url()}, job.clock);
  REQUIRE(client.ok());
  return ProbeEngine(**client, wish, job.clock.Now() + timeout);
}

std::string ConsequenceOf(const EngineProbe& probe, std::string_view endpoint) {
  const auto found =
      std::find_if(probe.missing.begin(), probe.missing.end(),
                   [&](const MissingEndpoint& missing) { return missing.endpoint == endpoint; });
  return found == probe.missing.end() ? "not missing" : found->consequence;
}

EngineEndpoints AllBut(const std::string& kind, std::vector<std::string> without) {
  EngineEndpoints all =
      kind == "sglang"
          ? EngineEndpoints{"/pause_generation",         "/continue_generation",   "/flush_cache",
                            "/update_weights_from_disk", "/update_weight_version", "/model_info",
                            "/get_model_info",           "/weights_checker"}
          : EngineEndpoints{"/pause",
                            "/resume",
                            "/is_paused",
                            "/reset_prefix_cache",
                            "/reset_encoder_cache",
                            "/collective_rpc",
                            "/update_weight_version",
                            "/weight_info",
                            "/weight_checker"};
  for (const std::string& endpoint : without) all.erase(endpoint);
  return all;
}

}  // namespace

TEST_CASE("SGLang and vLLM are told apart by their endpoints", "[engine_http]") {
  const bool described = GENERATE(true, false);
  const std::vector<std::string> without =
      described ? std::vector<std::string>{} : std::vector<std::string>{"/openapi.json"};
  HttpFixture sglang("sglang");
  sglang.Serve({.without = without});
  const auto one = Probe(sglang);
  REQUIRE(one.ok());
  CHECK(one->kind == EngineKind::kSglang);
  CHECK(one->endpoints == AllBut("sglang", {}));
  CHECK(one->missing.empty());
  CHECK(one->by_options == !described);
  CHECK(one->weight_version == "default");
  CHECK_FALSE(one->paused.has_value());
  // Probing changes nothing.
  CHECK(sglang.server->State()["paused"] == false);
  CHECK(sglang.server->State()["loads"] == 0);

  HttpFixture vllm("vllm");
  vllm.Serve({.without = without});
  const auto other = Probe(vllm);
  REQUIRE(other.ok());
  CHECK(other->kind == EngineKind::kVllm);
  CHECK(other->endpoints == AllBut("vllm", {}));
  CHECK(other->paused == false);
  CHECK(other->weight_version == "default");
}

TEST_CASE("a missing optional endpoint is named with its consequence", "[engine_http]") {
  HttpFixture job("sglang");
  job.Serve({.without = {"/update_weight_version", "/weights_checker", "/model_info",
                         "/get_model_info"}});
  const auto probe = Probe(job);
  REQUIRE(probe.ok());
  CHECK(ConsequenceOf(*probe, "/update_weight_version") ==
        "the version is told by /update_weights_from_disk alone");
  CHECK(ConsequenceOf(*probe, "/weights_checker") ==
        "the engine cannot be asked for checksums of its weights");
  CHECK(ConsequenceOf(*probe, "/model_info") ==
        "the version that the engine reports is not read back");

  const auto control = job.Control();
  REQUIRE(job.Commit(*control, 2).ok());
  CHECK(job.server->State()["weight_version"] == "2");
  CHECK(absl::IsUnimplemented(control->Checksum(kAmple).status()));
}

TEST_CASE("get_model_info is used where model_info is missing", "[engine_http]") {
  HttpFixture job("sglang");
  job.Serve({.without = {"/model_info"}});
  const auto probe = Probe(job);
  REQUIRE(probe.ok());
  CHECK(probe->missing.empty());
  CHECK(probe->weight_version == "default");
  REQUIRE(job.Commit(*job.Control(), 2).ok());
}

TEST_CASE("an engine without a required endpoint is refused and the endpoint is named",
          "[engine_http]") {
  const auto sglang =
      JudgeEndpoints(AllBut("sglang", {"/pause_generation", "/flush_cache"}), std::nullopt, "");
  CHECK(absl::IsFailedPrecondition(sglang.status()));
  CHECK(Says(sglang.status(), "this SGLang has no /pause_generation, /flush_cache"));
  // Pausing in place flushes no cache, so /flush_cache is not required.
  CHECK(JudgeEndpoints(AllBut("sglang", {"/flush_cache"}), std::nullopt, "in_place").ok());

  HttpFixture job("vllm");
  job.Serve({.without = {"/collective_rpc"}});
  const auto vllm = Probe(job);
  CHECK(absl::IsFailedPrecondition(vllm.status()));
  CHECK(Message(vllm.status()) ==
        job.server->url() +
            ": this vLLM has no /collective_rpc: without that its weights cannot be updated; start "
            "vLLM with VLLM_SERVER_DEV_MODE=1, and take a build that has them");
}

TEST_CASE("endpoints of no engine or of the wrong engine are refused", "[engine_http]") {
  const auto neither = JudgeEndpoints({"/weights_checker"}, std::nullopt, "");
  CHECK(absl::IsFailedPrecondition(neither.status()));
  CHECK(Says(neither.status(), "found neither"));
  CHECK(Says(neither.status(), "VLLM_SERVER_DEV_MODE=1"));
  EngineEndpoints both = AllBut("vllm", {});
  both.merge(AllBut("sglang", {}));
  CHECK(Says(JudgeEndpoints(both, std::nullopt, "").status(), "found both"));
  CHECK(JudgeEndpoints(both, EngineKind::kVllm, "")->kind == EngineKind::kVllm);

  const auto other = JudgeEndpoints(AllBut("vllm", {}), EngineKind::kSglang, "");
  CHECK(absl::IsFailedPrecondition(other.status()));
  CHECK(Says(other.status(), "this SGLang has no /pause_generation"));

  const auto mode = JudgeEndpoints(AllBut("vllm", {}), std::nullopt, "retract");
  CHECK(absl::IsInvalidArgument(mode.status()));
  CHECK(Message(mode.status()) ==
        "expected a way to pause vLLM, one of keep, wait, abort, found \"retract\"");
}

TEST_CASE("an engine that is still loading gives a retryable error", "[engine_http]") {
  HttpFixture job("sglang");
  const EngineServer& server = job.Serve();
  server.Misbehave("/openapi.json", "status", 0, {{"code", 503}, {"text", "loading"}});
  const auto loading = Probe(job);
  CHECK(absl::IsUnavailable(loading.status()));
  CHECK(Says(loading.status(), "503: loading"));
  server.Misbehave("/openapi.json", "hang");
  const Stopwatch watch(job.clock);
  CHECK(absl::IsDeadlineExceeded(Probe(job, {}, kBrief).status()));
  CHECK(watch.elapsed() < kBrief + kSlack);
  // An unreadable description is ignored; endpoints are then probed with OPTIONS.
  server.Misbehave("/openapi.json", "garbage");
  const auto probe = Probe(job);
  REQUIRE(probe.ok());
  CHECK(probe->by_options);
}

TEST_CASE("invalid options are refused before any call to the engine", "[engine_http]") {
  HttpFixture job("sglang");
  const EngineServer& server = job.Serve();
  const auto refused = [&](auto change) {
    HttpControlOptions options = job.ControlOptions();
    change(options);
    return MakeHttpControl(options, job.clock).status();
  };
  CHECK(Says(refused([](HttpControlOptions& o) { o.checkpoint = ""; }), "local checkpoint"));
  CHECK(Says(refused([](HttpControlOptions& o) { o.kind = "tgi"; }), "sglang or vllm"));
  CHECK(Says(refused([](HttpControlOptions& o) {
               o.kind = "sglang";
               o.mode = "keep";
             }),
             "one of retract, abort, in_place"));
  CHECK(Says(refused([](HttpControlOptions& o) { o.client.url = "engine:30000"; }),
             "http://127.0.0.1:30000"));
  CHECK(server.Calls().empty());
}

}  // namespace dws
