// A rollout engine's HTTP server, as what controls it sees it: the base URL, the bearer token from
// its file, deadlines, and which calls may be repeated. Replies of any status are returned; what
// they mean is engine_call.h's.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/model/limits.h"
#include "common/service/http/http_caller.h"

namespace dws {

// When a call may be sent again: limits::kEngineAttemptsMax times in all, or, where it may not be
// given up, until its deadline, and also when the engine answers that it cannot now (5xx, 408,
// 429).
enum class Repeat : uint8_t {
  kUnsent,  // only while the engine has surely not seen it: no connection was made
  kLost,    // also when the reply was lost, or is a gateway's (502, 503, 504): twice does no harm
};

struct SendOptions {
  Repeat repeat = Repeat::kUnsent;
  TimePoint deadline;       // of all attempts together
  bool may_give_up = true;  // when the client's `cancelled` says so
};

// Lifecycle: as long as the engine is controlled. Threads: one at a time.
class HttpClient {
 public:
  struct Options {
    std::string url;         // "http://127.0.0.1:30000"
    std::string token_file;  // "": no token is sent
    std::string ca_file;     // "": for https, whom this machine trusts
    bool insecure = false;   // allows a token to travel in clear to another machine
    std::function<bool()> cancelled = nullptr;          // asked while a call waits; may be empty
    Duration retry_delay = limits::kReconnectDelayMin;  // doubles
  };

  // INVALID_ARGUMENT: the URL or the CA file is none. FAILED_PRECONDITION: the token's file is
  // readable by everybody, is empty or too long, or has what a header cannot carry; or the token
  // would travel in clear. As ErrnoError: it cannot be read.
  static Result<std::unique_ptr<HttpClient>> Create(Options options, const Clock& clock);

  // The reply, of any status but 401: then the token's file is read again, and a token that has
  // changed is tried at once. FAILED_PRECONDITION: the engine refuses the token. DEADLINE_EXCEEDED
  // and the others of HttpOutcome. Messages begin with "POST http://127.0.0.1:30000/pause".
  Result<HttpAnswer> Send(const HttpCall& call, const SendOptions& options);

  // "POST http://127.0.0.1:30000/pause": without the query.
  std::string NameOf(const HttpCall& call) const;
  const HttpUrl& url() const { return caller_->url(); }
  const Clock& clock() const { return clock_; }
  // False: given up, or the deadline is nearer than that.
  bool Wait(Duration delay, const SendOptions& options) const;

 private:
  HttpClient(Options options, std::unique_ptr<HttpCaller> caller, std::string token,
             const Clock& clock);
  bool GivenUp(const SendOptions& options) const;
  Result<HttpAnswer> Try(HttpCall call, const SendOptions& options) const;
  // True when the file has another token than the one that was sent.
  Result<bool> ReloadToken();

  const Options options_;
  const std::unique_ptr<HttpCaller> caller_;
  const Clock& clock_;
  std::string token_;
};

// The token of a file that only its owner and group can read: one line, blanks around it cut off.
// Errors as of HttpClient::Create.
Result<std::string> ReadTokenFile(const std::string& path);

}  // namespace dws
