// One call of a plan that controls an engine over HTTP, and the reply that it expects. Plans
// (sglang_plan.h, vllm_plan.h) are lists of these; checking a reply is pure.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/service/http/http_caller.h"
#include "receiver_daemon/engine_http/http_client.h"

namespace dws {

// What the body of a successful reply has to be.
enum class ReplyForm : uint8_t {
  kAny,      // not checked: text, or empty
  kObject,   // a JSON object; "success", if present, is true
  kSuccess,  // a JSON object with "success": true
};

// A field of the reply and its value, as JSON: {"is_paused", true}.
struct ReplyField {
  std::string name;
  nlohmann::json value;
};

// One call, as values. Relative to the engine's base URL.
struct EngineCall {
  HttpMethod method = HttpMethod::kPost;
  std::string endpoint;                               // "/pause_generation", as in probe.h
  std::string query = "";                             // "?mode=keep"
  std::optional<nlohmann::json> body = std::nullopt;  // of a POST
  ReplyForm form = ReplyForm::kObject;
  std::optional<ReplyField> expected = std::nullopt;
  Repeat repeat = Repeat::kLost;
  // 400, or "success": false, means "not yet": ask again until the deadline.
  bool may_be_pending = false;
  // Later answers of an engine that refuses prove nothing: then the error is ABORTED instead of
  // FAILED_PRECONDITION.
  bool refusal_is_final = false;
  std::string advice = "";  // what to do when the call fails; ends the message

  HttpCall ToHttp() const;
};

// Returns the reply's object if `answer` is the reply that the call expects (kAny: an empty
// object). FAILED_PRECONDITION: the engine refuses, failed (500), has no such endpoint, or answers
// something else. UNAVAILABLE: it, or a proxy, cannot answer now (501 and above, 408, 429). The
// message has what was expected, the status code, and the engine's own message.
Result<nlohmann::json> CheckReply(const EngineCall& call, const HttpAnswer& answer);

// Sends the call and checks the reply. Errors of CheckReply and HttpClient::Send. DEADLINE_EXCEEDED
// also if the call was pending until the deadline; the message has the engine's. ABORTED: a refusal
// that is final. Messages name the URL and end with the call's advice.
Result<nlohmann::json> RunCall(HttpClient& client, const EngineCall& call, TimePoint deadline,
                               bool may_give_up = true);

// The JSON object in `text`; nullopt: it is not one, or is nested deeper than any reply.
std::optional<nlohmann::json> ParseObject(std::string_view text);

// Returns the engine's own message, for use in ours: its "message", "detail" or "error", else the
// body. Truncated, with only printable characters.
std::string Words(const HttpAnswer& answer);

}  // namespace dws
