// The SGLang control against a server that keeps state and misbehaves.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/receiver_daemon/engine_http/http_fixture.h"

namespace dws {
namespace {

using Paths = std::vector<std::string>;

EngineVersion At(uint64_t version) {
  return {.stream = {}, .version = WeightVersion(version), .state_token = {}};
}

}  // namespace

TEST_CASE("SGLang loads the patched checkpoint and reports its version and resumes",
          "[engine_http]") {
  HttpFixture job("sglang");
  const EngineServer& server = job.Serve();
  server.Tell({{"running", 3}});
  const auto control = job.Control();
  REQUIRE(job.Commit(*control, 2).ok());

  const nlohmann::json state = server.State();
  CHECK(state["tensors"] == HttpFixture::Tensors(2));
  CHECK(state["weight_version"] == "2");
  CHECK(state["paused"] == false);
  CHECK(state["cached"] == 0);
  CHECK(state["loads"] == 1);
  const Paths calls = server.Calls();
  const Paths expected = {"/openapi.json",
                          "/model_info",
                          "/pause_generation",
                          "/flush_cache",
                          "/update_weights_from_disk",
                          "/update_weight_version",
                          "/model_info",
                          "/continue_generation"};
  CHECK(calls == expected);
}

TEST_CASE("paused requests are not aborted when SGLang is given its version", "[engine_http]") {
  HttpFixture job("sglang");
  job.mode = "in_place";
  const EngineServer& server = job.Serve();
  server.Tell({{"running", 3}});
  const auto control = job.Control();
  REQUIRE(job.Commit(*control, 2).ok());
  const nlohmann::json state = server.State();
  CHECK(state["aborted"] == 0);
  CHECK(state["running"] == 3);
  CHECK(state["weight_version"] == "2");
  CHECK(server.CallsOf("/flush_cache").empty());
  CHECK(server.CallsOf("/update_weights_from_disk")[0]["body"]["flush_cache"] == false);
  CHECK(server.CallsOf("/update_weight_version")[0]["body"]["abort_all_requests"] == false);
}

TEST_CASE("SGLang's requests are retracted and go on, with the cache flushed", "[engine_http]") {
  HttpFixture job("sglang");
  const EngineServer& server = job.Serve();
  server.Tell({{"running", 3}});
  const auto control = job.Control();
  const Stopwatch watch(job.clock);
  REQUIRE(job.Commit(*control, 2).ok());
  CHECK(watch.elapsed() < kBrief);  // the flush waits for no queue to become empty
  const nlohmann::json state = server.State();
  CHECK(state["aborted"] == 0);
  CHECK(state["running"] == 3);
  CHECK(state["cached"] == 0);
  CHECK(server.CallsOf("/pause_generation")[0]["body"]["mode"] == "retract");
}

TEST_CASE("a pause fails at its deadline when retracted requests block the cache flush",
          "[engine_http]") {
  HttpFixture job("sglang");
  const EngineServer& server = job.Serve();
  server.Tell({{"running", 3}});
  // An old build, which counts them.
  server.Misbehave("/flush_cache", "refuse", 10'000, {{"text", "3 waiting requests"}});
  const auto control = job.Control();
  const Stopwatch watch(job.clock);
  const Status paused = control->Pause(kBrief);
  CHECK(watch.elapsed() < kBrief + kSlack);
  CHECK(absl::IsDeadlineExceeded(paused));
  CHECK(Says(paused, "pausing SGLang: GET " + server.url() + "/flush_cache: it was pending"));
  CHECK(Says(paused, "3 waiting requests"));
  CHECK(Says(paused, "pause with mode abort"));

  // The pipeline then resumes the engine, because nothing was written.
  CHECK(server.State()["paused"] == true);
  REQUIRE(control->Resume(At(1)).ok());
  const nlohmann::json state = server.State();
  CHECK(state["paused"] == false);
  CHECK(state["running"] == 3);
  CHECK(state["tensors"] == HttpFixture::Tensors(1));
}

TEST_CASE("a cache flush is repeated until SGLang accepts it", "[engine_http]") {
  HttpFixture job("sglang");
  job.mode = "retract";
  const EngineServer& server = job.Serve();
  server.Misbehave("/flush_cache", "refuse", 3, {{"text", "pending"}});
  const auto control = job.Control();
  REQUIRE(control->Pause(kAmple).ok());
  CHECK(server.CallsOf("/flush_cache").size() == 4);
}

TEST_CASE("a pause fails at its deadline when SGLang refuses the flush with an empty reply",
          "[engine_http]") {
  HttpFixture job("sglang");
  job.mode = "retract";
  const EngineServer& server = job.Serve();
  server.Misbehave("/flush_cache", "refuse", 10'000, {{"text", "  "}});
  const Status paused = job.Control()->Pause(kBrief);
  CHECK(absl::IsDeadlineExceeded(paused));
  CHECK(Says(paused, "it was pending until the deadline"));
}

TEST_CASE(
    "an SGLang that refuses to load stays paused with its reason and loads at the next commit",
    "[engine_http]") {
  HttpFixture job("sglang");
  const EngineServer& server = job.Serve();
  server.Misbehave("/update_weights_from_disk", "refuse", 1, {{"text", "out of memory"}});
  const auto control = job.Control();
  const Status failed = job.Commit(*control, 2);
  CHECK(absl::IsFailedPrecondition(failed));
  CHECK(Message(failed) == "reloading SGLang: POST " + server.url() +
                               "/update_weights_from_disk: expected status 200, found 400: out of "
                               "memory; the engine stays paused until a reload succeeds");
  CHECK(server.State()["paused"] == true);
  CHECK(server.State()["tensors"] == HttpFixture::Tensors(1));

  REQUIRE(job.Commit(*control, 2).ok());
  CHECK(server.State()["paused"] == false);
  CHECK(server.State()["tensors"] == HttpFixture::Tensors(2));
}

TEST_CASE("a reply with status 200 but without success counts as a failure", "[engine_http]") {
  HttpFixture job("sglang");
  const EngineServer& server = job.Serve();
  const std::string reply =
      GENERATE(R"({"success": false, "message": "half of it"})", R"({"message": "half of it"})");
  server.Misbehave("/update_weights_from_disk", "status", 1, {{"code", 200}, {"text", reply}});
  const auto control = job.Control();
  const Status failed = job.Commit(*control, 2);
  CHECK(absl::IsFailedPrecondition(failed));
  CHECK(Says(failed, "expected \"success\": true"));
  CHECK(Says(failed, "half of it"));
}

TEST_CASE("a bad reply to a reload fails by the deadline with its reason", "[engine_http]") {
  HttpFixture job("sglang");
  struct Case {
    const char* how;
    nlohmann::json more;
    absl::StatusCode code;
    const char* words;
  };
  const Case broken = GENERATE(
      Case{"hang", {}, absl::StatusCode::kDeadlineExceeded, "no complete reply within"},
      Case{"drip", {}, absl::StatusCode::kDeadlineExceeded, "no complete reply within"},
      Case{"drop", {}, absl::StatusCode::kUnavailable, "closed before the reply"},
      Case{"lose", {}, absl::StatusCode::kUnavailable, "closed before the reply"},
      Case{"garbage", {}, absl::StatusCode::kFailedPrecondition, "expected a JSON object"},
      Case{"huge", {{"bytes", 64 << 20}}, absl::StatusCode::kResourceExhausted, "larger than"},
      Case{"status",
           {{"code", 500}, {"text", "boom"}},
           absl::StatusCode::kFailedPrecondition,
           "500: boom"},
      Case{"status", {{"code", 302}}, absl::StatusCode::kFailedPrecondition, "found 302"},
      Case{"status", {{"code", 404}}, absl::StatusCode::kFailedPrecondition, "no such endpoint"});
  const EngineServer& server = job.Serve();
  const auto control = job.Control();
  REQUIRE(control->Pause(kAmple).ok());
  server.Misbehave("/update_weights_from_disk", broken.how, 0,
                   broken.more.is_null() ? nlohmann::json::object() : broken.more);
  job.PatchCheckpoint(2);
  const Stopwatch watch(job.clock);
  const Status failed = control->PostCommit(WeightVersion(2), kBrief);
  CHECK(watch.elapsed() < kBrief + kSlack);
  CHECK(failed.code() == broken.code);
  CHECK(Says(failed, broken.words));
  CHECK(Says(failed, "/update_weights_from_disk"));
  CHECK(server.State()["paused"] == true);
  // A reload is sent once: only the whole commit is repeated.
  CHECK(server.CallsOf("/update_weights_from_disk").size() == 1);
}

TEST_CASE("a commit fails when SGLang reports another version than it was given", "[engine_http]") {
  HttpFixture job("sglang");
  const EngineServer& server = job.Serve();
  const auto control = job.Control();
  server.Misbehave("/model_info", "status", 1,
                   {{"code", 200}, {"text", R"({"weight_version": "5"})"}});
  const Status failed = job.Commit(*control, 2);
  CHECK(absl::IsFailedPrecondition(failed));
  CHECK(Says(failed, "expected \"weight_version\": \"2\", found \"5\""));
  CHECK(server.State()["paused"] == true);
}

TEST_CASE("a resume whose reply is lost is repeated", "[engine_http]") {
  HttpFixture job("sglang");
  const EngineServer& server = job.Serve();
  const std::string how = GENERATE("lose", "drop");
  const auto control = job.Control();
  server.Misbehave("/continue_generation", how, 1);
  REQUIRE(job.Commit(*control, 2).ok());
  CHECK(server.CallsOf("/continue_generation").size() == 2);
  CHECK(server.State()["paused"] == false);
}

TEST_CASE("a resume that hangs fails by its deadline and the next commit resumes the engine",
          "[engine_http]") {
  HttpFixture job("sglang");
  const EngineServer& server = job.Serve();
  HttpControlOptions options = job.ControlOptions();
  options.resume_timeout = kBrief;
  const auto control = job.Control(options);
  server.Misbehave("/continue_generation", "hang", 1);
  const Status failed = job.Commit(*control, 2);
  CHECK(absl::IsDeadlineExceeded(failed));
  CHECK(Says(failed, "resuming SGLang: POST " + server.url() + "/continue_generation"));
  CHECK(server.State()["paused"] == true);

  REQUIRE(job.Commit(*control, 2).ok());
  CHECK(server.State()["paused"] == false);
  CHECK(server.State()["tensors"] == HttpFixture::Tensors(2));
}

TEST_CASE("an engine that dies between pause and resume is reported and works after its restart",
          "[engine_http]") {
  HttpFixture job("sglang");
  const std::string dies_at =
      GENERATE("/update_weights_from_disk", "/update_weight_version", "/continue_generation");
  job.Serve();
  HttpControlOptions options = job.ControlOptions();
  options.resume_timeout = kBrief;
  const auto control = job.Control(options);
  job.server->Misbehave(dies_at, "die");
  const Stopwatch watch(job.clock);
  const Status failed = job.Commit(*control, 2);
  CHECK(watch.elapsed() < kAmple);
  CHECK(absl::IsUnavailable(failed));
  CHECK(Says(failed, dies_at));
  job.server->AwaitEnd();
  const Status gone = control->Pause(kAmple);
  CHECK(absl::IsUnavailable(gone));
  CHECK(Says(gone, "cannot connect to 127.0.0.1:"));
  CHECK(Says(gone, "after 4 attempts"));

  const uint16_t port = job.server->port();
  const EngineServer& again = job.Serve({.port = port});
  CHECK(again.State()["tensors"] ==
        HttpFixture::Tensors(2));  // loaded from the checkpoint at its start
  CHECK(again.State()["weight_version"] == "default");
  REQUIRE(job.Commit(*control, 2).ok());
  CHECK(again.State()["paused"] == false);
  CHECK(again.State()["weight_version"] == "2");
}

TEST_CASE("an engine that a receiver left paused is resumed by a commit of the next receiver",
          "[engine_http]") {
  HttpFixture job("sglang");
  const EngineServer& server = job.Serve();
  {
    const auto first = job.Control();
    REQUIRE(first->Pause(kAmple).ok());
    job.PatchCheckpoint(2);
  }
  const auto second = job.Control();
  CHECK(server.State()["paused"] == true);
  REQUIRE(job.Commit(*second, 2).ok());
  CHECK(server.State()["paused"] == false);
  CHECK(server.State()["tensors"] == HttpFixture::Tensors(2));
}

TEST_CASE("checksums are equal for equal weights and differ for different weights",
          "[engine_http]") {
  HttpFixture job("sglang");
  job.Serve();
  const auto control = job.Control();
  const std::string before = control->Checksum(kAmple).value();
  CHECK(control->Checksum(kAmple).value() == before);
  CHECK(before.find("embed") != std::string::npos);
  REQUIRE(job.Commit(*control, 2).ok());
  CHECK(control->Checksum(kAmple).value() != before);
}

TEST_CASE("cancelling ends a pause at once but not a resume", "[engine_http]") {
  HttpFixture job("sglang");
  const EngineServer& server = job.Serve();
  bool stopping = false;
  HttpControlOptions options = job.ControlOptions();
  options.client.cancelled = [&stopping] { return stopping; };
  const auto control = job.Control(options);
  server.Misbehave("/flush_cache", "hang");
  stopping = true;
  const Stopwatch watch(job.clock);
  CHECK(absl::IsCancelled(control->Pause(kAmple)));
  CHECK(watch.elapsed() < kAmple);
  REQUIRE(control->Resume(At(1)).ok());
  CHECK(server.State()["paused"] == false);
}

}  // namespace dws
