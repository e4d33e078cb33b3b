// Tokens, retries and deadlines of calls to an engine.
#include "receiver_daemon/engine_http/http_client.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <string>

#include "tests/receiver_daemon/engine_http/http_fixture.h"

namespace dws {
namespace {

using std::filesystem::perms;

const HttpCall kAsk = {.method = HttpMethod::kGet, .target = "/model_info?x=1"};

std::unique_ptr<HttpClient> Make(const HttpFixture& job, HttpClient::Options options) {
  if (options.url.empty()) options.url = job.server->url();
  auto client = HttpClient::Create(std::move(options), job.clock);
  if (!client.ok()) FAIL(ToString(client.status()));
  return *std::move(client);
}

SendOptions Ask(const HttpFixture& job, Repeat repeat, Duration timeout = kAmple) {
  return {.repeat = repeat, .deadline = job.clock.Now() + timeout};
}

}  // namespace

TEST_CASE("the token is read from its file and read again after the engine refuses it",
          "[engine_http]") {
  HttpFixture job("sglang");
  const EngineServer& server = job.Serve({.token = "first"});
  const std::string path = job.WriteToken(" first\n");
  const auto client = Make(job, {.token_file = path});
  CHECK(client->Send(kAsk, Ask(job, Repeat::kUnsent))->code == 200);

  server.Tell({{"token", "second"}});
  const auto refused = client->Send(kAsk, Ask(job, Repeat::kUnsent));
  CHECK(absl::IsFailedPrecondition(refused.status()));
  CHECK(
      Message(refused.status()) ==
      fmt::format(
          "GET {}/model_info: the engine refuses the bearer token (401): {} must hold its API key",
          server.url(), path));
  job.WriteToken("second");
  CHECK(client->Send(kAsk, Ask(job, Repeat::kUnsent))->code == 200);
}

TEST_CASE("an engine that wants a token is reported when none is configured", "[engine_http]") {
  HttpFixture job("sglang");
  job.Serve({.token = "first"});
  const auto refused = Make(job, {})->Send(kAsk, Ask(job, Repeat::kUnsent));
  CHECK(absl::IsFailedPrecondition(refused.status()));
  CHECK(Says(refused.status(), "none is configured"));
}

TEST_CASE("a token that others can read, or that no header can carry, is refused",
          "[engine_http]") {
  HttpFixture job("sglang");
  const auto read = [&](const std::string& token, perms mode) {
    return ReadTokenFile(job.WriteToken(token, mode)).status();
  };
  const perms group = perms::owner_read | perms::group_read;
  CHECK(ReadTokenFile(job.WriteToken("abc\n", group)).value() == "abc");
  CHECK(Says(read("abc", group | perms::others_read), "found mode 0444"));
  CHECK(Says(read("abc", group | perms::others_write), "chmod 0640"));
  CHECK(Says(read(" \n", group), "found nothing"));
  CHECK(Says(read("a\r\nX-Other: b", group), "found blanks or others"));
  CHECK(Says(read(std::string(5000, 'a'), group), "at most 4096 bytes"));
  CHECK(absl::IsNotFound(ReadTokenFile(job.folder.File("none")).status()));
  CHECK(Says(ReadTokenFile(job.folder.path()).status(), "found no file"));
}

TEST_CASE("a token is not sent in clear to another machine unless that is allowed",
          "[engine_http]") {
  HttpFixture job("sglang");
  const std::string path = job.WriteToken("abc");
  const auto make = [&](const std::string& url, bool insecure) {
    return HttpClient::Create({.url = url, .token_file = path, .insecure = insecure}, job.clock)
        .status();
  };
  CHECK(absl::IsFailedPrecondition(make("http://10.0.0.7:30000", false)));
  CHECK(Says(make("http://10.0.0.7:30000", false), "unencrypted to http://10.0.0.7:30000"));
  CHECK(make("http://10.0.0.7:30000", true).ok());
  CHECK(make("https://10.0.0.7:30000", false).ok());
  CHECK(make("http://[::1]:30000", false).ok());
}

TEST_CASE("a repeatable call is retried when its reply is lost or comes from a gateway",
          "[engine_http]") {
  HttpFixture job("sglang");
  const EngineServer& server = job.Serve();
  const auto client = Make(job, {});
  server.Misbehave("/model_info", "drop", 2);
  CHECK(client->Send(kAsk, Ask(job, Repeat::kLost))->code == 200);
  server.Misbehave("/model_info", "status", 2, {{"code", 503}});
  CHECK(client->Send(kAsk, Ask(job, Repeat::kLost))->code == 200);
  CHECK(server.CallsOf("/model_info").size() == 6);

  server.Misbehave("/model_info", "drop");
  const auto lost = client->Send(kAsk, Ask(job, Repeat::kLost));
  CHECK(absl::IsUnavailable(lost.status()));
  CHECK(Says(lost.status(), "after 4 attempts"));
  CHECK(server.CallsOf("/model_info").size() == 10);
}

TEST_CASE("a call that must not be given up is sent until its deadline", "[engine_http]") {
  HttpFixture job("sglang");
  const EngineServer& server = job.Serve();
  std::atomic<bool> stops{true};
  const auto client = Make(job, {.cancelled = [&] { return stops.load(); },
                                 .retry_delay = std::chrono::milliseconds(1)});
  SendOptions options = Ask(job, Repeat::kLost, kAmple);
  CHECK(absl::IsCancelled(client->Send(kAsk, options).status()));
  CHECK(server.CallsOf("/model_info").empty());
  options.may_give_up = false;
  for (const int code : {503, 500, 429}) {
    server.Misbehave("/model_info", "status", 6, {{"code", code}});
    CHECK(client->Send(kAsk, options)->code == 200);
  }
  server.Misbehave("/model_info", "drop", 6);
  CHECK(client->Send(kAsk, options)->code == 200);
}

TEST_CASE("a call that must not run twice is not retried once it was sent", "[engine_http]") {
  HttpFixture job("sglang");
  const EngineServer& server = job.Serve();
  const auto client = Make(job, {});
  server.Misbehave("/model_info", "drop", 1);
  CHECK(absl::IsUnavailable(client->Send(kAsk, Ask(job, Repeat::kUnsent)).status()));
  server.Misbehave("/model_info", "status", 1, {{"code", 503}});
  CHECK(client->Send(kAsk, Ask(job, Repeat::kUnsent))->code == 503);
  CHECK(server.CallsOf("/model_info").size() == 2);
}

TEST_CASE("a refused connection is retried for every kind of call", "[engine_http]") {
  HttpFixture job("sglang");
  job.Serve();
  const auto client = Make(job, {});
  job.server->Kill();
  const auto refused = client->Send(kAsk, Ask(job, Repeat::kUnsent));
  CHECK(absl::IsUnavailable(refused.status()));
  CHECK(Says(refused.status(), "is it running, and listening there? (after 4 attempts)"));
}

TEST_CASE("all attempts together end at the deadline", "[engine_http]") {
  HttpFixture job("sglang");
  const EngineServer& server = job.Serve();
  const auto client = Make(job, {.retry_delay = std::chrono::hours(1)});
  server.Misbehave("/model_info", "drop");
  const Stopwatch watch(job.clock);
  CHECK(absl::IsUnavailable(client->Send(kAsk, Ask(job, Repeat::kLost, kBrief)).status()));
  server.Misbehave("/model_info", GENERATE("hang", "drip"));
  CHECK(absl::IsDeadlineExceeded(client->Send(kAsk, Ask(job, Repeat::kLost, kBrief)).status()));
  CHECK(watch.elapsed() < 2 * kBrief + kSlack);
  CHECK(absl::IsDeadlineExceeded(
      client->Send(kAsk, Ask(job, Repeat::kLost, Duration::zero())).status()));
}

TEST_CASE("a host name that does not resolve is reported with its URL", "[engine_http]") {
  HttpFixture job("sglang");
  const auto client = Make(job, {.url = "http://no-such-engine.invalid:1"});
  const auto refused = client->Send(kAsk, Ask(job, Repeat::kUnsent, kAmple));
  REQUIRE_FALSE(refused.ok());
  CHECK(Says(refused.status(), "GET http://no-such-engine.invalid:1/model_info"));
}

}  // namespace dws
