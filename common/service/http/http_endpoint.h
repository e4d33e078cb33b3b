// The HTTP side of a daemon: small pages for probes, people and scrapers (http_pages.h). GET and
// HEAD, no state, one request a connection; in clear on loopback, elsewhere over mutual TLS when
// the daemon has certificates.
//
// Strangers cannot hold it up: heads, connections and the time of a request are bounded (limits.h),
// and when all connections are taken the oldest that has not sent its request makes room.
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

// What the TLS of the next connection is made from: SSL_CTX, as a value that lives as long as it is
// used. Null: the connection is closed. Called on the endpoint's own thread.
using SslContextSource = std::function<std::shared_ptr<ssl_ctx_st>()>;

// Lifecycle: serves from Listen to the destructor, which lets requests in progress end and takes
// `timeout` at most, as long as pages keep their promise not to block. Threads: safe
// from any; one of its own for the connections, a few for pages.
class HttpEndpoint {
 public:
  struct Options {
    std::string address = "127.0.0.1:0";  // or "[::1]:0"
    bool insecure = false;                // allows addresses others can reach in clear
    SslContextSource tls = nullptr;       // used unless the address is loopback
    // For a client to send its request, and again to take its reply.
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
