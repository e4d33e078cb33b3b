// The HTTP side of a daemon: small pages for probes, people and scrapers (http_pages.h). GET and
// HEAD, no state, one request per connection; no TLS on loopback, mutual TLS elsewhere when the
// daemon has certificates.
//
// Strangers cannot block it: the size of a request's head, the number of connections and the time
// of a request are limited (limits.h). When all connections are in use, the oldest idle one is
// closed for a new one.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/limits.h"
#include "common/service/http/http_pages.h"

struct ssl_ctx_st;

namespace dws {

// Returns the SSL_CTX for the next connection. Null: the connection is closed. Called on the
// endpoint's thread.
using SslContextSource = std::function<std::shared_ptr<ssl_ctx_st>()>;

// Lifecycle: serves from Listen until the destructor, which lets requests in progress end. That
// takes at most `timeout` if no page blocks. Threads: safe from any; it runs one thread for the
// connections and a few for pages.
class HttpEndpoint {
 public:
  struct Options {
    std::string address = "127.0.0.1:0";  // or "[::1]:0"
    bool insecure = false;                // allows addresses that others can reach without TLS
    SslContextSource tls = nullptr;       // used unless the address is loopback
    // The time a client has to send its request, and again to take its reply.
    std::chrono::milliseconds timeout = limits::kHttpTimeout;
    size_t connections_max = limits::kHttpConnectionsMax;
  };

  // INVALID_ARGUMENT or FAILED_PRECONDITION: see listen_address.h. UNAVAILABLE: cannot bind.
  static Result<std::unique_ptr<HttpEndpoint>> Listen(const Options& options,
                                                      std::vector<HttpPage> pages);

  ~HttpEndpoint();
  uint16_t port() const;

 private:
  class Impl;
  explicit HttpEndpoint(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace dws
