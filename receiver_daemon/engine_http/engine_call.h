// One call of a plan that controls an engine over HTTP, and what a good reply to it is. Plans
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

// What an OK's body has to be.
enum class ReplyForm : uint8_t {
  kAny,      // nothing is said about it: text, or empty
  kObject,   // a JSON object, where "success", if it is there, is true
  kSuccess,  // a JSON object with "success": true
};

// A field of the reply and its value, as JSON: {"is_paused", true}.
struct ReplyField {
  std::string name;
  nlohmann::json value;
};

struct EngineCall {
  HttpMethod method = HttpMethod::kPost;
  std::string endpoint;                               // "/pause_generation": as probing knows it
  std::string query = "";                             // "?mode=keep"
  std::optional<nlohmann::json> body = std::nullopt;  // of a POST
  ReplyForm form = ReplyForm::kObject;
  std::optional<ReplyField> expected = std::nullopt;
  Repeat repeat = Repeat::kLost;
  bool pending_is_400 = false;  // 400 says "not yet": ask again until the deadline
  std::string advice = "";      // what to do when it fails; ends the message

  HttpCall ToHttp() const;
};

// The object, when `answer` is as the call expects it (kAny: an empty one). FAILED_PRECONDITION:
// the engine refuses, has failed at it (500), has no such endpoint, or answers something else.
// UNAVAILABLE: it, or a server before it, cannot now (5xx, 408, 429). The message has what was
// expected, the status, and the engine's words.
Result<nlohmann::json> CheckReply(const EngineCall& call, const HttpAnswer& answer);

// Sends it and checks the reply. DEADLINE_EXCEEDED also: it was pending all the time, with the
// engine's words. Other errors: of CheckReply and HttpClient::Send. Messages name the URL and end
// with the call's advice.
Result<nlohmann::json> RunCall(HttpClient& client, const EngineCall& call, TimePoint deadline,
                               bool may_give_up = true);

// The object in `text`; nullopt: it is none, or nested deeper than any reply.
std::optional<nlohmann::json> ParseObject(std::string_view text);

// What an engine says, fit for a message: its "message", "detail" or "error", else the body; cut,
// and without what is not printable.
std::string Words(const HttpAnswer& answer);

}  // namespace dws
