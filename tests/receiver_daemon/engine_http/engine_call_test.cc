// Which replies count as success, and how errors are reported for the others.
#include "receiver_daemon/engine_http/engine_call.h"

#include <catch2/catch.hpp>
#include <string>

#include "receiver_daemon/engine_http/sglang_plan.h"

namespace dws {
namespace {

const EngineCall kObject = {.endpoint = "/x"};
const EngineCall kSuccess = {.endpoint = "/x", .form = ReplyForm::kSuccess};

std::string Refusal(const EngineCall& call, const HttpAnswer& answer) {
  return std::string(Message(CheckReply(call, answer).status()));
}

}  // namespace

TEST_CASE("an error quotes the engine's own message", "[engine_http]") {
  CHECK(Refusal(kObject, {400, R"({"success": false, "message": "no\nmemory"})"}) ==
        "expected status 200, found 400: no memory");
  CHECK(Refusal(kObject, {422, R"({"detail": [{"msg": "Field required"}]})"}) ==
        R"(expected status 200, found 422: [{"msg":"Field required"}])");
  CHECK(Refusal(kObject, {500, R"({"error": {"message": "boom", "code": 500}})"}) ==
        "expected status 200, found 500: boom");
  CHECK(Refusal(kObject, {502, ""}) == "expected status 200, found 502: no details");
  CHECK(Refusal(kObject, {403, "denied"}) == "the engine forbids it (403): denied");
  CHECK(Refusal(kObject, {404, ""}) == "the engine has no such endpoint (404)");
  CHECK(absl::IsUnavailable(CheckReply(kObject, {429, "later"}).status()));
}

TEST_CASE("a reply's text is truncated and its control characters are replaced", "[engine_http]") {
  CHECK(Words({500, "\x1b[31mred\xff"}) == "?[31mred?");
  CHECK(Words({500, std::string(1000, 'a')}) == std::string(300, 'a') + "...");
}

TEST_CASE("a success reply needs a JSON true", "[engine_http]") {
  CHECK(CheckReply(kSuccess, {200, R"({"success": true})"}).ok());
  CHECK_FALSE(CheckReply(kSuccess, {200, "{}"}).ok());
  CHECK_FALSE(CheckReply(kSuccess, {200, R"({"success": "true"})"}).ok());
  CHECK_FALSE(CheckReply(kSuccess, {200, R"({"success": 1})"}).ok());
  CHECK(CheckReply(kObject, {200, "{}"}).ok());
  CHECK_FALSE(CheckReply(kObject, {200, R"({"success": false})"}).ok());
  CHECK_FALSE(CheckReply(kObject, {200, "[]"}).ok());
  CHECK_FALSE(CheckReply(kObject, {200, ""}).ok());
  CHECK(CheckReply({.endpoint = "/x", .form = ReplyForm::kAny}, {200, "flushed"}).ok());
}

TEST_CASE("a very deeply nested reply is refused", "[engine_http]") {
  const std::string deep =
      R"({"a":)" + std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}";
  CHECK_FALSE(ParseObject(deep).has_value());
  CHECK(ParseObject(R"({"a": "[[[[[[\"[[["})").has_value());
  CHECK_FALSE(ParseObject(R"({"a": "[[[)").has_value());
}

TEST_CASE("SGLang requests have the expected bodies and queries", "[engine_http]") {
  const EngineSetup setup{.mode = PauseMode::kRetract,
                          .checkpoint = "/models/\"a\"",
                          .endpoints = {"/update_weight_version", "/model_info"},
                          .reports_version = true};
  const auto pause = SglangPauseCalls(setup);
  REQUIRE(pause.size() == 2);
  CHECK(pause[0].ToHttp().body == R"({"mode":"retract"})");
  CHECK(pause[1].ToHttp().target == "/flush_cache");
  CHECK(pause[1].ToHttp().body.empty());
  const auto reload = SglangReloadCalls(setup, WeightVersion(7));
  REQUIRE(reload.size() == 1);
  CHECK(reload[0].ToHttp().body ==
        R"({"flush_cache":true,"model_path":"/models/\"a\"","weight_version":"7"})");
  const auto tell = SglangTellCalls(setup, WeightVersion(7));
  REQUIRE(tell.size() == 1);
  CHECK(tell[0].ToHttp().body == R"({"abort_all_requests":false,"new_version":"7"})");
  CHECK(SglangResumeCalls(setup)[0].ToHttp().body == "{}");
}

}  // namespace dws
