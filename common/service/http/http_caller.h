// Calls an HTTP server and waits for its reply: with or without TLS, a deadline for the whole call,
// and a limit on the reply's size. Each call has a connection of its own, or one that an earlier
// call has left open. It does not retry, but for a call that finds such a connection closed, and
// does not follow redirects. A reply of any status is returned as a reply; the caller decides what
// it means.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/service/http/http_url.h"

struct ssl_ctx_st;
struct ssl_st;

namespace dws {

class HttpChannel;

enum class HttpMethod : uint8_t { kGet, kHead, kPut, kPost, kDelete, kOptions };
const char* ToString(HttpMethod method);

struct HttpCall {
  HttpMethod method = HttpMethod::kGet;
  std::string target;  // path and query, after the URL's path
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;  // of a PUT or POST
  // The call ends, as if its time were over, when no byte has gone or come for so long; 0: only
  // then.
  Duration still_max = Duration::zero();
  size_t answer_bytes_max = 0;  // 0: the caller's
};

struct HttpAnswer {
  int code = 0;
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers = {};  // names in lower case
};

struct HttpOutcome {
  // UNAVAILABLE: no connection, or it ended before the reply did. DEADLINE_EXCEEDED: its time is
  // over, or nothing moved for too long. CANCELLED.
  // RESOURCE_EXHAUSTED: the reply is larger than allowed. FAILED_PRECONDITION: the certificate does
  // not prove the server's name, or the reply is not HTTP. INVALID_ARGUMENT: a header has a line
  // break.
  Result<HttpAnswer> answer;
  // False: the server has certainly not received the request, so any request may be repeated.
  bool sent = false;
};

// Calls one server. SIGPIPE must be ignored. Lifecycle: outlives its calls. Threads: safe from any.
class HttpCaller {
 public:
  struct Options {
    std::string ca_file;  // PEM: the CAs trusted for https; "": those that this machine trusts
    // PEM: what is shown to a server that asks for a certificate, and its key, read for each
    // connection; "": nothing. If they cannot be read or do not belong together, nothing is shown,
    // and the log says why (client_certificate_not_shown).
    std::string cert_file = {};
    std::string key_file = {};
    std::string server_name = {};  // that its certificate has to prove; "": the URL's host
    size_t answer_bytes_max = 0;
    // Connections that are left open after a reply: later calls go by them, until `idle_max` after
    // it. If the server closes one before any byte of its reply, a call that is no POST is repeated
    // on a new one. 0: each call has a new connection, and is sent once.
    size_t idle_connections_max = 0;
    Duration idle_max = std::chrono::seconds(10);
    std::string resolver_file = "/etc/resolv.conf";  // names the name servers; tests have their own
  };

  // INVALID_ARGUMENT: `ca_file` cannot be used.
  static Result<std::unique_ptr<HttpCaller>> Create(HttpUrl url, Options options);
  ~HttpCaller();

  const HttpUrl& url() const { return url_; }

  // Blocks for at most `timeout`; calls `cancelled`, if given, every limits::kTick.
  HttpOutcome Call(const HttpCall& call, Duration timeout,
                   const std::function<bool()>& cancelled = nullptr) const;

 private:
  struct Idle {
    std::unique_ptr<HttpChannel> channel;
    TimePoint since;
  };

  HttpCaller(HttpUrl url, Options options, std::shared_ptr<ssl_ctx_st> tls);
  // Called by OpenSSL, on the thread of a call.
  static int ShowCertificate(ssl_st* ssl, void* caller);
  // The connection that became idle last and can be used; null: there is none.
  std::unique_ptr<HttpChannel> TakeIdle() const;
  // Keeps a connection that can be used again, and closes those that have been idle for too long.
  void Keep(std::unique_ptr<HttpChannel> channel) const;

  const HttpUrl url_;
  const Options options_;
  const std::shared_ptr<ssl_ctx_st> tls_;  // null: no TLS
  mutable Mutex mutex_;
  mutable std::vector<Idle> idle_ GUARDED_BY(mutex_);  // the newest last
  std::string not_shown_ GUARDED_BY(mutex_);           // the newest reason; "": it was shown
};

}  // namespace dws
