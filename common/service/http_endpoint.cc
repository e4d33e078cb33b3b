#include "common/service/http_endpoint.h"

#include <CivetServer.h>
#include <arpa/inet.h>
#include <sys/socket.h>

#include <chrono>
#include <thread>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/unique_fd.h"
#include "common/service/listen_address.h"

namespace dws {
namespace {

// Pages are small and quick; the threads are for connections that stay silent.
constexpr const char* kThreads = "8";
constexpr const char* kRequestTimeoutMs = "2000";

class ServedPage final : public CivetHandler {
 public:
  explicit ServedPage(HttpPage page) : page_(std::move(page)) {}

  const std::string& path() const { return page_.path; }

  using CivetHandler::handleGet;
  bool handleGet(CivetServer*, mg_connection* connection) override {
    const HttpReply reply = page_.render();
    const std::string head = fmt::format(
        "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n"
        "Connection: close\r\n\r\n",
        reply.code, mg_get_response_code_text(connection, reply.code), reply.content_type,
        reply.body.size());
    mg_write(connection, head.data(), head.size());
    mg_write(connection, reply.body.data(), reply.body.size());
    return true;
  }

 private:
  const HttpPage page_;
};

}  // namespace

std::vector<HttpPage> HealthPages(const Lifecycle& lifecycle) {
  return {
      {.path = "/healthz", .render = [] { return HttpReply{.body = "ok\n"}; }},
      {.path = "/readyz",
       .render =
           [&lifecycle] {
             const Lifecycle::State state = lifecycle.state();
             if (state.ready) return HttpReply{.body = "ready\n"};
             return HttpReply{.code = 503, .body = state.reason + "\n"};
           }},
  };
}

class HttpEndpoint::Impl {
 public:
  Impl(const ListenAddress& address, std::vector<HttpPage> pages)
      : host_(address.host == "localhost" ? "127.0.0.1" : address.host),
        server_(std::vector<std::string>{"listening_ports", address.ToString(), "num_threads",
                                         kThreads, "request_timeout_ms", kRequestTimeoutMs}) {
    handlers_.reserve(pages.size());
    for (HttpPage& page : pages) {
      handlers_.push_back(std::make_unique<ServedPage>(std::move(page)));
      server_.addHandler(handlers_.back()->path(), *handlers_.back());
    }
    port_ = static_cast<uint16_t>(server_.getListeningPorts().front());
  }
  ~Impl();

  uint16_t port() const { return port_; }

 private:
  void Touch() const;

  const std::string host_;
  uint16_t port_ = 0;
  std::vector<std::unique_ptr<ServedPage>> handlers_;
  CivetServer server_;
};

// The server's thread looks only every two seconds whether it should end, unless somebody connects:
// so connect until it has ended.
HttpEndpoint::Impl::~Impl() {
  Mutex mutex;
  CondVar ended;
  bool closed = false;
  std::thread closing([&] {
    server_.close();
    MutexLock lock(mutex);
    closed = true;
    ended.NotifyAll();
  });
  while (true) {
    Touch();
    MutexLock lock(mutex);
    if (closed) break;
    ended.WaitFor(mutex, std::chrono::milliseconds(10));
  }
  closing.join();
}

void HttpEndpoint::Impl::Touch() const {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port_);
  ::inet_pton(AF_INET, host_.c_str(), &address.sin_addr);
  static_cast<void>(
      ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)));
}

Result<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Listen(const Options& options,
                                                           std::vector<HttpPage> pages) {
  DWS_ASSIGN_OR_RETURN(const ListenAddress address, ParseListenAddress(options.address));
  DWS_RETURN_IF_ERROR(CheckExposure(address, "--http", options.insecure));
  if (address.host.find(':') != std::string::npos) {
    return InvalidArgumentError("expected an IPv4 address for HTTP, found {}", options.address);
  }
  // The library reports failure to start by an exception: it must not leave this file.
  try {
    return std::unique_ptr<HttpEndpoint>(
        new HttpEndpoint(std::make_unique<Impl>(address, std::move(pages))));
  } catch (const CivetException& exception) {
    return UnavailableError("cannot listen for HTTP on {} (is it in use?): {}", options.address,
                            exception.what());
  }
}

HttpEndpoint::HttpEndpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpEndpoint::~HttpEndpoint() = default;
uint16_t HttpEndpoint::port() const { return impl_->port(); }

}  // namespace dws
