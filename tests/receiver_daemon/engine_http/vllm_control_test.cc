// The vLLM control against a server that keeps state and misbehaves.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "receiver_daemon/follower/engine_loader.h"
#include "tests/receiver_daemon/engine_http/http_fixture.h"

namespace dws {
namespace {

using Paths = std::vector<std::string>;

EngineVersion At(uint64_t version) {
  return {.stream = {}, .version = WeightVersion(version), .state_token = {}};
}

}  // namespace

TEST_CASE("vLLM loads the patched checkpoint and drops its caches and keeps its requests",
          "[engine_http]") {
  HttpFixture job("vllm");
  const EngineServer& server = job.Serve();
  server.Tell({{"running", 3}});
  const auto control = job.Control();
  REQUIRE(job.Commit(*control, 2).ok());

  const nlohmann::json state = server.State();
  CHECK(state["tensors"] == HttpFixture::Tensors(2));
  CHECK(state["weight_version"] == "2");
  CHECK(state["paused"] == false);
  CHECK(state["cached"] == 0);
  CHECK(state["connector_cached"] == 0);
  CHECK(state["encoder_cached"] == 0);
  CHECK(state["loads"] == 1);
  CHECK(server.Calls() == Paths{"/openapi.json", "/is_paused", "/weight_info", "/pause",
                                "/is_paused", "/reset_prefix_cache", "/reset_encoder_cache",
                                "/collective_rpc", "/update_weight_version", "/weight_info",
                                "/resume", "/is_paused"});
  CHECK(server.CallsOf("/pause")[0]["query"] ==
        nlohmann::json{{"mode", "keep"}, {"clear_cache", "true"}});
  CHECK(server.CallsOf("/reset_prefix_cache")[0]["query"]["reset_running_requests"] == "true");
  const nlohmann::json body = server.CallsOf("/collective_rpc")[0]["body"];
  CHECK(body["method"] == "reload_weights");
  CHECK(body["kwargs"] ==
        nlohmann::json{{"weights_path", job.checkpoint()}, {"is_checkpoint_format", true}});
}

TEST_CASE("a vLLM whose pause keeps the caches is told to drop them", "[engine_http]") {
  HttpFixture job("vllm");
  const EngineServer& server = job.Serve();
  server.Tell({{"running", 3}, {"ignores_clear_cache", true}});
  const auto control = job.Control();
  REQUIRE(job.Commit(*control, 2).ok());
  CHECK(server.State()["cached"] == 0);
  CHECK(server.State()["encoder_cached"] == 0);
  CHECK(server.State()["running"] == 3);
}

TEST_CASE("the pause clears the caches when vLLM has no endpoints for that", "[engine_http]") {
  HttpFixture job("vllm");
  const EngineServer& server =
      job.Serve({.without = {"/reset_prefix_cache", "/reset_encoder_cache", "/is_paused"}});
  CHECK(Says(MakeHttpControl(job.ControlOptions(), job.clock).status(),
             "/reset_prefix_cache (needed with mode keep)"));
  job.mode = "abort";
  const auto control = job.Control();
  REQUIRE(job.Commit(*control, 2).ok());
  CHECK(server.State()["cached"] == 0);
  CHECK(server.State()["connector_cached"] == 0);
  CHECK(server.State()["encoder_cached"] == 0);
  CHECK(server.State()["tensors"] == HttpFixture::Tensors(2));
}

TEST_CASE("a pause that waits for requests fails at its deadline and vLLM can be resumed",
          "[engine_http]") {
  HttpFixture job("vllm");
  job.mode = "wait";
  const EngineServer& server = job.Serve();
  server.Tell({{"running", 1}});
  const auto control = job.Control();
  const Stopwatch watch(job.clock);
  const Status paused = control->Pause(kBrief);
  CHECK(watch.elapsed() < kBrief + kSlack);
  CHECK(absl::IsDeadlineExceeded(paused));
  CHECK(Says(paused, "pausing vLLM: POST " + server.url() + "/pause: no complete reply within"));
  REQUIRE(control->Resume(At(1)).ok());
  CHECK(server.State()["paused"] == false);
  CHECK(server.State()["tensors"] == HttpFixture::Tensors(1));
}

TEST_CASE("a vLLM worker that cannot load leaves the engine paused and gives the reason",
          "[engine_http]") {
  HttpFixture job("vllm");
  const EngineServer& server = job.Serve();
  const auto control = job.Control();
  REQUIRE(control->Pause(kAmple).ok());
  std::filesystem::remove(job.checkpoint() + "/model.safetensors");
  const Status failed = control->PostCommit(WeightVersion(2), kAmple);
  CHECK(absl::IsAborted(failed));
  CHECK(Says(failed,
             "/collective_rpc: expected status 200, found 500: Call to collective_rpc method "
             "failed: Worker failed with error 'Cannot find any model"));
  CHECK(Says(failed, "the engine stays paused until it is restarted"));
  CHECK(server.State()["paused"] == true);
}

TEST_CASE("a vLLM that refused a load is asked for no other before it was seen to be gone",
          "[engine_http]") {
  HttpFixture job("vllm");
  job.Serve();
  // The first load fails in one worker, the next would fail in the other, whose reply is old then.
  job.server->Tell({{"failing", {0, 1}}});
  const std::string url = job.server->url();
  PosixFileSystem files;
  const CheckpointVersion version{.version = 2, .contents = "two"};
  std::filesystem::create_directory(job.checkpoint() + "/.weight_sync");
  const auto make = [&] {
    return EngineLoader({.make_control = [&]() -> Result<std::unique_ptr<EngineControl>> {
                           HttpControlOptions options = job.ControlOptions(url);
                           options.probe_timeout = kBrief;
                           return MakeHttpControl(std::move(options), job.clock);
                         },
                         .on_holds = [](std::optional<uint64_t>) {},
                         .record = LoadedRecord(files, job.checkpoint(), url),
                         .clock = job.clock},
                        kAmple);
  };
  EngineLoader loader = make();
  job.PatchCheckpoint(2);
  CHECK_THAT(ToString(loader.Load(version).status()), Catch::Contains("restart the engine"));
  CHECK(loader.may_read());
  CHECK_THAT(ToString(loader.Load(version).status()), Catch::Contains("restart the engine"));
  EngineLoader later = make();  // the receiver was restarted, the engine was not
  CHECK_THAT(ToString(later.Load(version).status()), Catch::Contains("restart the engine"));
  CHECK_FALSE(later.holds().has_value());
  CHECK(job.server->CallsOf("/collective_rpc").size() == 1);
  CHECK(job.server->State()["paused"] == true);

  const uint16_t port = job.server->port();
  job.server.reset();
  CHECK(absl::IsUnavailable(later.Load(version).status()));
  const EngineServer& again = job.Serve({.port = port});
  REQUIRE(later.Load(version).ok());
  CHECK(later.holds() == 2);
  CHECK(again.State()["paused"] == false);
  CHECK(again.State()["worker_loads"] == nlohmann::json{1, 1});
  CHECK(again.State()["tensors"] == HttpFixture::Tensors(2));
}

TEST_CASE("a cache that vLLM does not reset is asked for until it does", "[engine_http]") {
  HttpFixture job("vllm");
  const EngineServer& server = job.Serve();
  server.Misbehave("/reset_prefix_cache", "status", 2,
                   {{"code", 200}, {"text", R"({"success": false})"}});
  const auto control = job.Control();
  REQUIRE(job.Commit(*control, 2).ok());
  CHECK(server.CallsOf("/reset_prefix_cache").size() == 3);
  CHECK(server.State()["cached"] == 0);
  server.Misbehave("/reset_prefix_cache", "status", 10'000,
                   {{"code", 200}, {"text", R"({"success": false})"}});
  const Status paused = control->Pause(kBrief);
  CHECK(absl::IsDeadlineExceeded(paused));
  CHECK(Says(paused, "blocks of the cache are still held"));
}

TEST_CASE("a vLLM that reports another version than it was told fails the commit",
          "[engine_http]") {
  HttpFixture job("vllm");
  const EngineServer& server = job.Serve();
  const auto control = job.Control();
  REQUIRE(job.Commit(*control, 2).ok());
  CHECK(control->Reports(WeightVersion(2), kAmple).ok());
  CHECK(control->Check(WeightVersion(2), kAmple).ok());
  const Status other = control->Check(WeightVersion(3), kAmple);
  CHECK(Says(other, "expected \"weight_version\": \"3\", found \"2\""));
  server.Misbehave("/update_weight_version", "status", 1, {{"code", 200}, {"text", "{}"}});
  CHECK(Says(job.Commit(*control, 3), "is another process updating this engine?"));
  REQUIRE(control->Pause(kAmple).ok());
  CHECK(Says(control->Reports(WeightVersion(2), kAmple), "\"is_paused\": false, found true"));
}

TEST_CASE("vLLM is told the number of a version that changes nothing", "[engine_http]") {
  HttpFixture job("vllm");
  const EngineServer& server = job.Serve();
  server.Tell({{"running", 3}});
  const auto control = job.Control();
  REQUIRE(control->Tell(WeightVersion(8), kAmple).ok());
  CHECK(server.State()["weight_version"] == "8");
  CHECK(server.State()["aborted"] == 0);
  CHECK(server.CallsOf("/pause").empty());
  CHECK(server.State()["loads"] == 0);
}

TEST_CASE("vLLM's checksums are equal for equal weights", "[engine_http]") {
  HttpFixture job("vllm");
  job.Serve();
  const auto control = job.Control();
  const std::string before = control->Checksum(kAmple).value();
  CHECK(control->Checksum(kAmple).value() == before);
  REQUIRE(job.Commit(*control, 2).ok());
  CHECK(control->Checksum(kAmple).value() != before);
}

TEST_CASE("a pause fails when vLLM accepts it but does not pause", "[engine_http]") {
  HttpFixture job("vllm");
  const EngineServer& server = job.Serve();
  const auto control = job.Control();
  server.Misbehave("/pause", "status", 1, {{"code", 200}, {"text", R"({"status": "paused"})"}});
  const Status paused = control->Pause(kAmple);
  CHECK(absl::IsFailedPrecondition(paused));
  CHECK(Says(paused, "expected \"is_paused\": true, found false"));
}

TEST_CASE("a resume fails when vLLM accepts it but stays paused", "[engine_http]") {
  HttpFixture job("vllm");
  const EngineServer& server = job.Serve();
  const auto control = job.Control();
  server.Misbehave("/resume", "status", 1, {{"code", 200}, {"text", "{}"}});
  const Status failed = job.Commit(*control, 2);
  CHECK(absl::IsFailedPrecondition(failed));
  CHECK(Says(failed, "resuming vLLM"));
  CHECK(Says(failed, "expected \"is_paused\": false, found true"));
  CHECK(server.State()["paused"] == true);
  REQUIRE(job.Commit(*control, 2).ok());
  CHECK(server.State()["paused"] == false);
}

TEST_CASE("a vLLM that dies while loading is reported and works after its restart",
          "[engine_http]") {
  HttpFixture job("vllm");
  job.Serve();
  const auto control = job.Control();
  job.server->Misbehave("/collective_rpc", "die_after");
  const Status failed = job.Commit(*control, 2);
  CHECK(absl::IsUnavailable(failed));
  CHECK(Says(failed, "/collective_rpc: the connection closed before the reply was complete"));
  job.server->AwaitEnd();

  const uint16_t port = job.server->port();
  const EngineServer& again = job.Serve({.port = port});
  REQUIRE(job.Commit(*control, 2).ok());
  CHECK(again.State()["paused"] == false);
  CHECK(again.State()["tensors"] == HttpFixture::Tensors(2));
}

TEST_CASE("the probe reports that an engine is paused", "[engine_http]") {
  HttpFixture job("vllm");
  const EngineServer& server = job.Serve();
  {
    const auto first = job.Control();
    REQUIRE(first->Pause(kAmple).ok());
  }
  const auto client = HttpClient::Create({.url = server.url()}, job.clock);
  REQUIRE(client.ok());
  const auto probe = ProbeEngine(**client, {}, job.clock.Now() + kAmple);
  REQUIRE(probe.ok());
  CHECK(probe->kind == EngineKind::kVllm);
  CHECK(probe->paused == true);
}

}  // namespace dws
