// The HTTP side of a daemon: small pages for probes, people and scrapers. Plain GET, no state.
//
// /healthz and /readyz come from HealthPages. /status and /metrics will be pages of their own
// functions, given to Listen in the same list.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/service/lifecycle.h"

namespace dws {

struct HttpReply {
  int code = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

struct HttpPage {
  std::string path;                   // "/healthz"
  std::function<HttpReply()> render;  // called on the endpoint's threads, several at a time
};

// /healthz: 200 "ok" as long as the process answers. /readyz: 200 "ready", or 503 with the reason.
// `lifecycle` outlives the pages.
std::vector<HttpPage> HealthPages(const Lifecycle& lifecycle);

// Lifecycle: serves from Listen to the destructor, which waits for requests in progress. One that
// comes at that moment may stay without an answer until the process ends.
// Threads: safe from any.
class HttpEndpoint {
 public:
  struct Options {
    std::string address = "127.0.0.1:0";
    bool insecure = false;  // allows addresses others can reach
  };

  // IPv4 only, as Debian builds the library. INVALID_ARGUMENT or FAILED_PRECONDITION: see
  // listen_address.h. UNAVAILABLE: cannot bind.
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
