#include "receiver_daemon/engine_http/engine_call.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/check.h"

namespace dws {
namespace {

using nlohmann::json;

constexpr int kDepthMax = 64;

// The parser recurses and allocates for each level, so limit the depth before parsing: count the
// brackets outside of strings.
bool IsFlat(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '[' || c == '{')) {
      if (++depth > kDepthMax) return false;
    } else if (!in_string && (c == ']' || c == '}')) {
      --depth;
    }
  }
  return true;
}

std::string Printable(std::string_view text) {
  std::string quoted(text.substr(0, limits::kEngineQuoteBytesMax));
  for (char& c : quoted) {
    if (c < ' ' || c > '~') c = c == '\n' || c == '\t' || c == '\r' ? ' ' : '?';
  }
  while (quoted.ends_with(' ')) quoted.pop_back();
  if (text.size() > limits::kEngineQuoteBytesMax) quoted += "...";
  return quoted;
}

std::string Dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

bool IsPending(const HttpAnswer& answer) {
  if (answer.code == 400) return true;
  if (answer.code != 200) return false;
  const std::optional<json> object = ParseObject(answer.body);
  return object.has_value() && object->value("success", json(true)) == false;
}

Status CheckCode(const HttpAnswer& answer) {
  const int code = answer.code;
  if (code >= 200 && code < 300) return OkStatus();
  if (code == 404 || code == 405) {
    return FailedPreconditionError("the engine has no such endpoint ({})", code);
  }
  const std::string words = Words(answer);
  if (code == 403) return FailedPreconditionError("the engine forbids it (403): {}", words);
  if (code > 500 || code == 408 || code == 429) {
    return UnavailableError("expected status 200, found {}: {}", code, words);
  }
  return FailedPreconditionError("expected status 200, found {}: {}", code, words);
}

}  // namespace

std::optional<json> ParseObject(std::string_view text) {
  if (!IsFlat(text)) return std::nullopt;
  json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return std::nullopt;
  return parsed;
}

std::string Words(const HttpAnswer& answer) {
  if (answer.body.empty()) return "no details";
  if (const std::optional<json> object = ParseObject(answer.body); object.has_value()) {
    for (const char* key : {"message", "detail", "error"}) {
      const auto found = object->find(key);
      if (found == object->end() || found->is_null()) continue;
      if (found->is_string()) return Printable(found->get_ref<const std::string&>());
      if (found->is_object() && found->contains("message") && (*found)["message"].is_string()) {
        return Printable((*found)["message"].get_ref<const std::string&>());
      }
      return Printable(Dump(*found));
    }
  }
  return Printable(answer.body);
}

HttpCall EngineCall::ToHttp() const {
  HttpCall call{.method = method, .target = endpoint + query, .headers = {}, .body = ""};
  if (body.has_value()) {
    DWS_CHECK(method == HttpMethod::kPost);
    call.headers.emplace_back("Content-Type", "application/json");
    call.body = Dump(*body);
  }
  return call;
}

Result<json> CheckReply(const EngineCall& call, const HttpAnswer& answer) {
  DWS_RETURN_IF_ERROR(CheckCode(answer));
  if (call.form == ReplyForm::kAny) return json::object();
  std::optional<json> object = ParseObject(answer.body);
  if (!object.has_value()) {
    return FailedPreconditionError("expected a JSON object, found \"{}\": is this such an engine?",
                                   Printable(answer.body));
  }
  const auto success = object->find("success");
  const bool said = success != object->end();
  if ((said && *success != true) || (!said && call.form == ReplyForm::kSuccess)) {
    return FailedPreconditionError("expected \"success\": true, found {}: {}",
                                   said ? Dump(*success) : "none", Words(answer));
  }
  if (call.expected.has_value()) {
    const auto field = object->find(call.expected->name);
    if (field == object->end() || *field != call.expected->value) {
      return FailedPreconditionError("expected \"{}\": {}, found {}", call.expected->name,
                                     Dump(call.expected->value),
                                     field == object->end() ? "none" : Printable(Dump(*field)));
    }
  }
  return *std::move(object);
}

Result<json> RunCall(HttpClient& client, const EngineCall& call, TimePoint deadline,
                     bool may_give_up) {
  const SendOptions options{
      .repeat = call.repeat, .deadline = deadline, .may_give_up = may_give_up};
  const HttpCall http = call.ToHttp();
  const auto failed = [&](const Status& status) {
    const bool is_final = call.refusal_is_final && absl::IsFailedPrecondition(status);
    const std::string advice = call.advice.empty() ? "" : "; " + call.advice;
    return MakeStatus(is_final ? absl::StatusCode::kAborted : status.code(),
                      fmt::format("{}{}", Message(status), advice));
  };
  Duration delay = limits::kReconnectDelayMin;
  std::optional<std::string> pending;
  while (true) {
    Result<HttpAnswer> answer = client.Send(http, options);
    const bool is_pending = answer.ok() && call.may_be_pending && IsPending(*answer);
    if (answer.ok() && !is_pending) {
      Result<json> reply = CheckReply(call, *answer);
      if (reply.ok()) return reply;
      return failed(Annotate(reply.status(), client.NameOf(http)));
    }
    if (is_pending) pending = Words(*answer);
    if (is_pending && client.Wait(delay, options)) {
      delay = std::min<Duration>(delay * 2, limits::kEngineRetryDelayMax);
      continue;
    }
    if (!pending.has_value() || (!is_pending && !absl::IsDeadlineExceeded(answer.status()))) {
      return failed(answer.status());
    }
    return failed(DeadlineExceededError("{}: it was pending until the deadline: {}",
                                        client.NameOf(http), *pending));
  }
}

}  // namespace dws
