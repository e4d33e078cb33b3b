#include "common/service/http/http_endpoint.h"

#include <arpa/inet.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <thread>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/base/threads/executor.h"
#include "common/base/threads/mutex.h"
#include "common/base/unique_fd.h"
#include "common/model/limits.h"
#include "common/service/http/http_connection.h"
#include "common/service/listen_address.h"

namespace dws {
namespace {

// More than one, so that a slow page does not delay a probe.
constexpr size_t kPageThreads = 4;
constexpr int kBacklog = 128;
// One pass each for a callback, for the work it defers, and for freeing.
constexpr int kLastPasses = 3;
constexpr timeval kAcceptRetry = {.tv_sec = 0, .tv_usec = 200'000};

struct Bound {
  UniqueFd socket;
  uint16_t port = 0;
};

Result<Bound> Bind(const ListenAddress& address) {
  const bool v6 = address.host.find(':') != std::string::npos;
  const std::string host = address.host == "localhost" ? "127.0.0.1" : address.host;
  sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = htons(address.port)};
  sockaddr_in in4 = {.sin_family = AF_INET, .sin_port = htons(address.port)};
  auto* name = v6 ? reinterpret_cast<sockaddr*>(&in6) : reinterpret_cast<sockaddr*>(&in4);
  socklen_t size = v6 ? sizeof(in6) : sizeof(in4);
  ::inet_pton(name->sa_family, host.c_str(),
              v6 ? static_cast<void*>(&in6.sin6_addr) : static_cast<void*>(&in4.sin_addr));
  Bound bound{
      .socket = UniqueFd(::socket(name->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))};
  const int yes = 1;
  ::setsockopt(bound.socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (!bound.socket.valid() || ::bind(bound.socket.get(), name, size) != 0 ||
      ::listen(bound.socket.get(), kBacklog) != 0) {
    const int error = errno;
    return UnavailableError("cannot listen for HTTP on {} (is it in use?): {}", address.ToString(),
                            Message(ErrnoError(error, "bind")));
  }
  ::getsockname(bound.socket.get(), name, &size);
  bound.port = ntohs(v6 ? in6.sin6_port : in4.sin_port);
  return bound;
}

struct Free {
  void operator()(event_base* base) const { event_base_free(base); }
  void operator()(event* one) const { event_free(one); }
  void operator()(evconnlistener* listener) const { evconnlistener_free(listener); }
};

}  // namespace

// How it runs:
//   1. the loop thread accepts, reads a request, and posts its page to the page threads
//   2. a page thread renders, puts the reply into replies_ and wakes the loop
//   3. the loop writes the reply
//   4. at the end the loop stops accepting, drops idle connections, and ends when the last other
//      connection has ended
class HttpEndpoint::Impl {
 public:
  Impl(Bound bound, std::vector<HttpPage> pages, Options options);
  ~Impl();
  uint16_t port() const { return port_; }

 private:
  void OnAccept(UniqueFd socket);
  void OnRequest(uint64_t id, const HttpRequest& request);
  void OnEnd(uint64_t id);
  void OnWake();
  void Wake();
  void EndIfOver();
  void DropOldestIdle();

  const uint16_t port_;
  const Options options_;
  std::map<std::string, std::function<HttpReply()>> pages_;
  HttpConnection::Callbacks callbacks_;
  const UniqueFd wake_;
  std::unique_ptr<event_base, Free> base_;
  std::unique_ptr<event, Free> woken_;
  std::unique_ptr<event, Free> accept_again_;
  std::unique_ptr<evconnlistener, Free> listener_;  // null while stopping
  uint64_t last_id_ = 0;
  std::map<uint64_t, std::unique_ptr<HttpConnection>> connections_;  // only on the loop thread

  Mutex mutex_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<std::pair<uint64_t, HttpReply>> replies_ GUARDED_BY(mutex_);
  Executor page_threads_{kPageThreads, limits::kHttpConnectionsMax};
  std::thread loop_;
};

HttpEndpoint::Impl::Impl(Bound bound, std::vector<HttpPage> pages, Options options)
    : port_(bound.port),
      options_(std::move(options)),
      callbacks_{
          .on_request = [this](uint64_t id, const HttpRequest& request) { OnRequest(id, request); },
          .on_end = [this](uint64_t id) { OnEnd(id); }},
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      base_(event_base_new()) {
  for (HttpPage& page : pages) pages_[page.path] = std::move(page.render);
  DWS_CHECK(wake_.valid() && base_ != nullptr);
  woken_.reset(event_new(
      base_.get(), wake_.get(), EV_READ | EV_PERSIST,
      [](int, short, void* on) { static_cast<Impl*>(on)->OnWake(); }, this));
  accept_again_.reset(evtimer_new(
      base_.get(),
      [](int, short, void* on) {
        auto* self = static_cast<Impl*>(on);
        if (self->listener_ != nullptr) evconnlistener_enable(self->listener_.get());
      },
      this));
  listener_.reset(evconnlistener_new(
      base_.get(),
      [](evconnlistener*, int socket, sockaddr*, int, void* on) {
        static_cast<Impl*>(on)->OnAccept(UniqueFd(socket));
      },
      this, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, bound.socket.release()));
  DWS_CHECK(woken_ != nullptr && accept_again_ != nullptr && listener_ != nullptr);
  // Out of descriptors: the connection stays in the queue, and accepting again at once would spin.
  evconnlistener_set_error_cb(listener_.get(), [](evconnlistener* listener, void* on) {
    evconnlistener_disable(listener);
    evtimer_add(static_cast<Impl*>(on)->accept_again_.get(), &kAcceptRetry);
  });
  event_add(woken_.get(), nullptr);
  loop_ = std::thread([this] { event_base_dispatch(base_.get()); });
}

HttpEndpoint::Impl::~Impl() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  Wake();
  loop_.join();
  page_threads_.Stop();
  connections_.clear();  // before base_, which they use
  // The library frees a connection in its last deferred callback, which only the loop runs.
  for (int pass = 0; pass < kLastPasses; ++pass) event_base_loop(base_.get(), EVLOOP_NONBLOCK);
}

void HttpEndpoint::Impl::Wake() {
  const uint64_t one = 1;
  static_cast<void>(!::write(wake_.get(), &one, sizeof(one)));  // full: a wake-up is pending
}

void HttpEndpoint::Impl::OnAccept(UniqueFd socket) {
  if (connections_.size() >= options_.connections_max) DropOldestIdle();
  if (connections_.size() >= options_.connections_max) return;  // returning closes it
  const std::shared_ptr<ssl_ctx_st> context = options_.tls == nullptr ? nullptr : options_.tls();
  if (options_.tls != nullptr && context == nullptr) return;
  const uint64_t id = ++last_id_;
  auto connection = HttpConnection::Open(base_.get(), std::move(socket), context.get(),
                                         options_.timeout, id, callbacks_);
  if (connection != nullptr) connections_.emplace(id, std::move(connection));
}

void HttpEndpoint::Impl::DropOldestIdle() {
  const auto oldest = std::find_if(connections_.begin(), connections_.end(),
                                   [](const auto& entry) { return entry.second->idle(); });
  if (oldest != connections_.end()) connections_.erase(oldest);
}

void HttpEndpoint::Impl::OnRequest(uint64_t id, const HttpRequest& request) {
  HttpConnection& connection = *connections_.at(id);
  const auto page = pages_.find(request.path);
  if (page == pages_.end()) return connection.Reply(HttpError(404));
  const bool posted = page_threads_.Post([this, id, &render = page->second] {
    HttpReply reply = render();
    {
      MutexLock lock(mutex_);
      replies_.emplace_back(id, std::move(reply));
    }
    Wake();
  });
  if (!posted) connection.Reply(HttpError(503));
}

void HttpEndpoint::Impl::OnEnd(uint64_t id) {
  connections_.erase(id);
  EndIfOver();
}

void HttpEndpoint::Impl::OnWake() {
  uint64_t count = 0;
  static_cast<void>(!::read(wake_.get(), &count, sizeof(count)));
  std::vector<std::pair<uint64_t, HttpReply>> replies;
  bool stopping = false;
  {
    MutexLock lock(mutex_);
    replies.swap(replies_);
    stopping = stopping_;
  }
  for (const auto& [id, reply] : replies) {
    const auto connection = connections_.find(id);
    if (connection != connections_.end()) connection->second->Reply(reply);
  }
  if (!stopping) return;
  listener_.reset();
  std::erase_if(connections_, [](const auto& entry) { return entry.second->idle(); });
  EndIfOver();
}

void HttpEndpoint::Impl::EndIfOver() {
  if (listener_ == nullptr && connections_.empty()) event_base_loopbreak(base_.get());
}

Result<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Listen(const Options& options,
                                                           std::vector<HttpPage> pages) {
  DWS_ASSIGN_OR_RETURN(const ListenAddress address, ParseListenAddress(options.address));
  DWS_RETURN_IF_ERROR(CheckExposure(address, "--http", options.insecure || options.tls != nullptr));
  // Otherwise the library would write to stderr in a format of its own.
  event_set_log_callback([](int, const char* text) {
    LogDebug("http_library", {{"reason", text}});
  });
  DWS_ASSIGN_OR_RETURN(Bound bound, Bind(address));
  Options used = options;
  if (address.IsLoopback()) used.tls = nullptr;
  return std::unique_ptr<HttpEndpoint>(new HttpEndpoint(
      std::make_unique<Impl>(std::move(bound), std::move(pages), std::move(used))));
}

HttpEndpoint::HttpEndpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpEndpoint::~HttpEndpoint() = default;
uint16_t HttpEndpoint::port() const { return impl_->port(); }

}  // namespace dws
