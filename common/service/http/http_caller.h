// Calls an HTTP server and waits for its reply: one request a connection, in clear or over TLS, a
// deadline on the whole call, replies bounded. Nothing is retried or followed here, and a reply of
// any status is a reply: what to make of it is the caller's (receiver_daemon/engine_http).
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
#include "common/service/http/http_url.h"

struct ssl_ctx_st;

namespace dws {

enum class HttpMethod : uint8_t { kGet, kPost, kOptions };
const char* ToString(HttpMethod method);

struct HttpCall {
  HttpMethod method = HttpMethod::kGet;
  std::string target;  // path and query, after the URL's path
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;  // of a POST
};

struct HttpAnswer {
  int code = 0;
  std::string body;
};

struct HttpOutcome {
  // UNAVAILABLE: no connection, or it ended before the reply did. DEADLINE_EXCEEDED, CANCELLED.
  // RESOURCE_EXHAUSTED: the reply is larger than allowed. FAILED_PRECONDITION: the server's
  // certificate does not prove that it is the one; what came is not HTTP.
  Result<HttpAnswer> answer;
  // False: the server has surely not seen it, so that it may be repeated whatever it does.
  bool sent = false;
};

// Needs SIGPIPE to be ignored. Lifecycle: as long as calls are made. Threads: safe from any.
class HttpCaller {
 public:
  struct Options {
    std::string ca_file;  // PEM: who is trusted for https; "": whom this machine trusts
    size_t answer_bytes_max = 0;
  };

  // INVALID_ARGUMENT: `ca_file` cannot be used.
  static Result<std::unique_ptr<HttpCaller>> Create(HttpUrl url, Options options);
  ~HttpCaller();

  const HttpUrl& url() const { return url_; }

  // Blocks for `timeout` at most; asks `cancelled`, if any, every limits::kTick.
  HttpOutcome Call(const HttpCall& call, Duration timeout,
                   const std::function<bool()>& cancelled = nullptr) const;

 private:
  HttpCaller(HttpUrl url, Options options, std::shared_ptr<ssl_ctx_st> tls);

  const HttpUrl url_;
  const Options options_;
  const std::shared_ptr<ssl_ctx_st> tls_;  // null: in clear
};

}  // namespace dws
