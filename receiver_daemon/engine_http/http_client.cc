#include "receiver_daemon/engine_http/http_client.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/threads/cancellation.h"
#include "common/service/http/secret_file.h"

namespace dws {
namespace {

constexpr int kUnauthorized = 401;

// A proxy reports that it did not reach the engine, or that the engine is starting.
bool IsGateways(int code) { return code == 502 || code == 503 || code == 504; }

// The engine itself reports that it cannot answer now.
bool IsBusy(int code) { return code >= 500 || code == 408 || code == 429; }

bool MayRepeat(const HttpOutcome& outcome, const SendOptions& options) {
  const bool lost = options.repeat == Repeat::kLost;
  if (outcome.answer.ok()) {
    const int code = outcome.answer->code;
    return lost && (IsGateways(code) || (!options.may_give_up && IsBusy(code)));
  }
  if (!absl::IsUnavailable(outcome.answer.status())) return false;
  return !outcome.sent || lost;
}

Status CheckToken(const std::string& token, const std::string& path) {
  if (token.empty()) {
    return FailedPreconditionError("expected a bearer token in {}, found nothing", path);
  }
  if (!std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 0x7f; })) {
    return FailedPreconditionError(
        "expected one bearer token of visible ASCII characters in {}, found blanks or others",
        path);
  }
  return OkStatus();
}

}  // namespace

Result<std::string> ReadTokenFile(const std::string& path) {
  DWS_ASSIGN_OR_RETURN(std::string token,
                       ReadSecretFile(path, "the engine's token", limits::kEngineTokenBytesMax));
  constexpr std::string_view kBlanks = " \t\r\n";
  token.erase(0, std::min(token.find_first_not_of(kBlanks), token.size()));
  token.erase(token.find_last_not_of(kBlanks) + 1);
  DWS_RETURN_IF_ERROR(CheckToken(token, path));
  return token;
}

Result<std::unique_ptr<HttpClient>> HttpClient::Create(Options options, const Clock& clock) {
  DWS_ASSIGN_OR_RETURN(HttpUrl url, ParseHttpUrl(options.url));
  std::string token;
  if (!options.token_file.empty()) {
    if (!url.tls && !url.IsLoopback() && !options.insecure) {
      return FailedPreconditionError(
          "the token of {} would be sent unencrypted to {}: use https, or allow it as insecure",
          options.token_file, url.ToString());
    }
    DWS_ASSIGN_OR_RETURN(token, ReadTokenFile(options.token_file));
  }
  DWS_ASSIGN_OR_RETURN(
      auto caller,
      HttpCaller::Create(std::move(url), {.ca_file = options.ca_file,
                                          .answer_bytes_max = limits::kEngineReplyBytesMax}));
  return std::unique_ptr<HttpClient>(
      new HttpClient(std::move(options), std::move(caller), std::move(token), clock));
}

HttpClient::HttpClient(Options options, std::unique_ptr<HttpCaller> caller, std::string token,
                       const Clock& clock)
    : options_(std::move(options)),
      caller_(std::move(caller)),
      clock_(clock),
      token_(std::move(token)) {
  DWS_CHECK(caller_ != nullptr);
}

std::string HttpClient::NameOf(const HttpCall& call) const {
  return fmt::format("{} {}{}", ToString(call.method), url().ToString(),
                     call.target.substr(0, call.target.find('?')));
}

bool HttpClient::GivenUp(const SendOptions& options) const {
  return options.may_give_up && options_.cancelled != nullptr && options_.cancelled();
}

bool HttpClient::Wait(Duration delay, const SendOptions& options) const {
  const TimePoint until = clock_.Now() + delay;
  if (until >= options.deadline) return false;
  Cancellation never;  // this thread sleeps in ticks, so that the call can be given up
  while (clock_.Now() < until) {
    if (GivenUp(options)) return false;
    never.Sleep(std::min<Duration>(until - clock_.Now(), limits::kTick));
  }
  return true;
}

Result<HttpAnswer> HttpClient::Try(HttpCall call, const SendOptions& options) const {
  if (!token_.empty()) call.headers.emplace_back("Authorization", "Bearer " + token_);
  Duration delay = options_.retry_delay;
  if (GivenUp(options)) return CancelledError("the call was given up");
  for (int attempt = 1;; ++attempt) {
    DWS_CHECK(!options.may_give_up || attempt <= limits::kEngineAttemptsMax);
    HttpOutcome outcome = caller_->Call(call, options.deadline - clock_.Now(),
                                        options.may_give_up ? options_.cancelled : nullptr);
    const bool again = (!options.may_give_up || attempt < limits::kEngineAttemptsMax) &&
                       MayRepeat(outcome, options);
    if (!again || !Wait(delay, options)) {
      if (outcome.answer.ok() || attempt == 1) return std::move(outcome.answer);
      return MakeStatus(
          outcome.answer.status().code(),
          fmt::format("{} (after {} attempts)", Message(outcome.answer.status()), attempt));
    }
    delay = std::min<Duration>(delay * 2, limits::kEngineRetryDelayMax);
  }
}

Result<bool> HttpClient::ReloadToken() {
  if (options_.token_file.empty()) return false;
  DWS_ASSIGN_OR_RETURN(std::string token, ReadTokenFile(options_.token_file));
  if (token == token_) return false;
  token_ = std::move(token);
  return true;
}

Result<HttpAnswer> HttpClient::Send(const HttpCall& call, const SendOptions& options) {
  Result<HttpAnswer> answer = Try(call, options);
  if (answer.ok() && answer->code == kUnauthorized) {
    const Result<bool> changed = ReloadToken();
    if (!changed.ok()) return Annotate(changed.status(), NameOf(call) + " answers 401");
    if (*changed) answer = Try(call, options);
  }
  if (!answer.ok()) return Annotate(answer.status(), NameOf(call));
  if (answer->code != kUnauthorized) return answer;
  if (options_.token_file.empty()) {
    return FailedPreconditionError(
        "{}: the engine wants a bearer token (401), and none is configured: name the file that "
        "has its API key",
        NameOf(call));
  }
  return FailedPreconditionError(
      "{}: the engine refuses the bearer token (401): {} must hold its API key", NameOf(call),
      options_.token_file);
}

}  // namespace dws
