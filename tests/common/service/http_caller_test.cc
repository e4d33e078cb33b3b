// Calls of an HTTP server in another process, in clear and over TLS.
#include "common/service/http/http_caller.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/fakes/engine_server/engine_server.h"
#include "tests/fakes/temp_folder.h"
#include "tests/fakes/test_certificates.h"

namespace dws {
namespace {

constexpr std::chrono::seconds kAmple{20};
constexpr std::chrono::milliseconds kBrief{400};
const HttpCall kAsk = {.method = HttpMethod::kGet, .target = "/model_info"};

struct Place {
  Place() { WriteCheckpoint(folder.path(), {{"a", "1"}}); }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder.File(name)) << text;
    return folder.File(name);
  }
  HttpOutcome Call(const std::string& url, const HttpCall& call = kAsk, Duration timeout = kAmple,
                   const std::string& ca_file = "", size_t bytes_max = 1 << 20) const {
    const auto caller =
        HttpCaller::Create(*ParseHttpUrl(url), {.ca_file = ca_file, .answer_bytes_max = bytes_max});
    REQUIRE(caller.ok());
    return (*caller)->Call(call, timeout);
  }
  TempFolder folder;
};

bool Says(const HttpOutcome& outcome, std::string_view words) {
  return Message(outcome.answer.status()).find(words) != std::string_view::npos;
}

}  // namespace

TEST_CASE("a reply with any status code is returned as a reply", "[http]") {
  const Place place;
  const EngineServer server({.model = place.folder.path()});
  const HttpOutcome good = place.Call(server.url());
  REQUIRE(good.answer.ok());
  CHECK(good.sent);
  CHECK(good.answer->code == 200);
  CHECK(good.answer->body.find("weight_version") != std::string::npos);
  CHECK(place.Call(server.url(), {.target = "/none"}).answer->code == 404);
  CHECK(place.Call(server.url() + "/prefix").answer->code == 404);
  const HttpCall asked = {.method = HttpMethod::kOptions, .target = "/model_info"};
  CHECK(place.Call(server.url(), asked).answer->code == 405);
  const std::string port = std::to_string(server.port());
  CHECK(place.Call("http://localhost:" + port).answer->code == 200);
}

TEST_CASE("a call that cannot connect is reported as not sent", "[http]") {
  const Place place;
  std::string url;
  {
    const EngineServer server({.model = place.folder.path()});
    url = server.url();
  }
  const HttpOutcome none = place.Call(url);
  CHECK(absl::IsUnavailable(none.answer.status()));
  CHECK_FALSE(none.sent);
  CHECK(Says(none, "cannot connect to 127.0.0.1:"));
}

TEST_CASE("a call that the server drops or delays is reported as sent", "[http]") {
  const Place place;
  const EngineServer server({.model = place.folder.path()});
  server.Misbehave("/model_info", "drop");
  const HttpOutcome dropped = place.Call(server.url());
  CHECK(absl::IsUnavailable(dropped.answer.status()));
  CHECK(dropped.sent);
  server.Misbehave("/model_info", GENERATE("hang", "drip"));
  const HttpOutcome late = place.Call(server.url(), kAsk, kBrief);
  CHECK(absl::IsDeadlineExceeded(late.answer.status()));
  CHECK(late.sent);
}

TEST_CASE("a reply larger than allowed is refused", "[http]") {
  const Place place;
  const EngineServer server({.model = place.folder.path()});
  CHECK(place.Call(server.url(), kAsk, kAmple, "", 4096).answer.ok());
  const HttpOutcome large = place.Call(server.url(), kAsk, kAmple, "", 10);
  CHECK(absl::IsResourceExhausted(large.answer.status()));
  CHECK(Says(large, "larger than 10 bytes"));
  HttpCall brief = kAsk;
  brief.answer_bytes_max = 11;
  CHECK(Says(place.Call(server.url(), brief), "larger than 11 bytes"));
}

TEST_CASE("a header with a line break is refused and the call is not sent", "[http]") {
  const Place place;
  const EngineServer server({.model = place.folder.path()});
  HttpCall call = kAsk;
  call.headers.emplace_back("Authorization", "Bearer x\r\nX-Other: y");
  const HttpOutcome refused = place.Call(server.url(), call);
  CHECK(absl::IsInvalidArgument(refused.answer.status()));
  CHECK(Says(refused, "the header Authorization has a line break"));
  CHECK(server.Calls().empty());
}

TEST_CASE("over TLS only a server with a trusted certificate for the host is called", "[http]") {
  const Place place;
  const TestAuthority trusted("trusted");
  const TestAuthority other("other");
  const std::string ca = place.Write("ca.pem", trusted.pem());
  const auto serve = [&](const TestAuthority& authority, const std::string& name) {
    const TestPair pair = authority.Issue({.names = {name}});
    return place.Write("server.pem", pair.cert_pem + pair.key_pem);
  };
  {
    const EngineServer server(
        {.model = place.folder.path(), .pem = serve(trusted, "IP:127.0.0.1"), .ca_file = ca});
    CHECK(place.Call(server.url(), kAsk, kAmple, ca).answer->code == 200);
    // The certificate is for the address, not for the name.
    const std::string port = std::to_string(server.port());
    const HttpOutcome named = place.Call("https://localhost:" + port, kAsk, kAmple, ca);
    CHECK(absl::IsFailedPrecondition(named.answer.status()));
    CHECK(Says(named, "hostname mismatch"));
    // No authority that this machine trusts has signed it.
    CHECK(absl::IsFailedPrecondition(place.Call(server.url()).answer.status()));
    const HttpOutcome clear = place.Call("http://127.0.0.1:" + port);
    CHECK_FALSE(clear.answer.ok());
    CHECK(server.Calls() == std::vector<std::string>{"/model_info"});
  }
  const EngineServer server({.model = place.folder.path(),
                             .pem = serve(other, "IP:127.0.0.1"),
                             .ca_file = place.Write("other.pem", other.pem())});
  const HttpOutcome stranger = place.Call(server.url(), kAsk, kAmple, ca);
  CHECK(absl::IsFailedPrecondition(stranger.answer.status()));
  CHECK(Says(stranger, "is not accepted"));
  CHECK_FALSE(stranger.sent);
}

TEST_CASE("a CA file without a certificate is refused by name", "[http]") {
  const Place place;
  const HttpUrl url = *ParseHttpUrl("https://127.0.0.1");
  const auto caller =
      HttpCaller::Create(url, {.ca_file = place.Write("ca.pem", "none"), .answer_bytes_max = 10});
  CHECK(absl::IsInvalidArgument(caller.status()));
  CHECK(Message(caller.status()).find(place.folder.File("ca.pem")) != std::string_view::npos);
}

}  // namespace dws
