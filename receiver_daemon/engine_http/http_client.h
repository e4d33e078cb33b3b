// A client of a rollout engine's HTTP server: knows the base URL, the bearer token from its file,
// deadlines, and which calls may be repeated. Returns replies of any status; engine_call.h
// interprets them.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/model/limits.h"
#include "common/service/http/http_caller.h"

namespace dws {

// When a call may be sent again. A call is sent at most limits::kEngineAttemptsMax times. One that
// may not be given up is repeated until its deadline, and with kLost also when the engine answers
// that it cannot do it now (5xx, 408, 429).
enum class Repeat : uint8_t {
  kUnsent,  // only if the engine has certainly not seen the request: no connection was made
  kLost,    // also if the reply is lost or a proxy's (502, 503, 504): repeating does no harm
};

// How long and how often one call is tried.
struct SendOptions {
  Repeat repeat = Repeat::kUnsent;
  TimePoint deadline;       // of all attempts together
  bool may_give_up = true;  // when the client's `cancelled` returns true
};

// Lifecycle: lives as long as the engine is controlled; `clock` must outlive it. Threads: one at a
// time.
class HttpClient {
 public:
  struct Options {
    std::string url;         // "http://127.0.0.1:30000"
    std::string token_file;  // "": no token is sent
    std::string ca_file;     // "": for https, the CAs that this machine trusts
    bool insecure = false;   // allows a token to travel in clear to another machine
    std::function<bool()> cancelled = nullptr;          // asked while a call waits; may be empty
    Duration retry_delay = limits::kReconnectDelayMin;  // doubles
  };

  // INVALID_ARGUMENT: not a URL, or not a CA file. FAILED_PRECONDITION: the token's file is
  // accessible to everybody, not a regular file, empty or too long, or has characters that a header
  // cannot carry; or the token would be sent unencrypted. Errors as ErrnoError: it cannot be read.
  static Result<std::unique_ptr<HttpClient>> Create(Options options, const Clock& clock);

  // The reply, of any status except 401. After a 401 the token's file is read again; if the token
  // has changed, the call is tried with it at once. FAILED_PRECONDITION: the engine refuses the
  // token. Also the errors of HttpOutcome, as DEADLINE_EXCEEDED, and CANCELLED: given up. Messages
  // begin with "POST http://127.0.0.1:30000/pause".
  Result<HttpAnswer> Send(const HttpCall& call, const SendOptions& options);

  // "POST http://127.0.0.1:30000/pause": without the query.
  std::string NameOf(const HttpCall& call) const;
  const HttpUrl& url() const { return caller_->url(); }
  const Clock& clock() const { return clock_; }
  // Waits for `delay`. False: given up, or the deadline comes first; then it does not wait.
  bool Wait(Duration delay, const SendOptions& options) const;

 private:
  HttpClient(Options options, std::unique_ptr<HttpCaller> caller, std::string token,
             const Clock& clock);
  bool GivenUp(const SendOptions& options) const;
  Result<HttpAnswer> Try(HttpCall call, const SendOptions& options) const;
  // True if the file has another token than the one that was sent.
  Result<bool> ReloadToken();

  const Options options_;
  const std::unique_ptr<HttpCaller> caller_;
  const Clock& clock_;
  std::string token_;
};

// The token in a file that only its owner and group can access: one line; blanks around it are
// removed. Errors as of HttpClient::Create.
Result<std::string> ReadTokenFile(const std::string& path);

}  // namespace dws
