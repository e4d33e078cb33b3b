// One connection to an HTTP server, with or without TLS, and the calls that are made on it one
// after the other. Used by http_caller.h alone.
#pragma once

#include <event2/http.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/service/http/http_caller.h"
#include "common/service/http/http_url.h"

struct bufferevent;
struct event;
struct event_base;
struct evdns_base;
struct evhttp_connection;
struct evhttp_request;
struct evkeyvalq;
struct ssl_st;

namespace dws {

// Lifecycle: connects with its first call; the destructor closes the connection. Threads: one at a
// time.
class HttpChannel {
 public:
  // If `options` keep idle connections, asks the server to leave it open after a reply. `url` and
  // `options` outlive it.
  HttpChannel(const HttpUrl& url, std::shared_ptr<ssl_ctx_st> tls,
              const HttpCaller::Options& options);
  ~HttpChannel();

  // As HttpCaller::Call, on this connection. Only for the first call, or while IsIdle.
  HttpOutcome Call(const HttpCall& call, Duration timeout, const std::function<bool()>& cancelled);

  // The connection is open, and has neither a byte left over nor a reason to be closed.
  bool IsIdle();
  // The last call ended because the server closed the connection before any byte of the reply.
  bool ended_unanswered() const;

  // Set when the server has asked for a certificate and none could be shown: on a new connection
  // one may be.
  void set_lacks_certificate(bool lacks) { lacks_certificate_ = lacks; }
  bool lacks_certificate() const { return lacks_certificate_; }

 private:
  struct Free {
    void operator()(event_base* base) const;
    void operator()(evdns_base* base) const;
    void operator()(event* one) const;
    void operator()(evhttp_connection* connection) const;
  };

  struct Watch;  // of a call that runs

  bool Connect();
  Status Send(const HttpCall& call);
  void OnDone(evhttp_request* request);
  void OnTick(Watch& watch);
  Status Failure(Duration timeout) const;

  const HttpUrl& url_;
  const std::shared_ptr<ssl_ctx_st> tls_;
  const HttpCaller::Options& options_;
  const bool keep_;
  bool lacks_certificate_ = false;
  bool leaves_open_ = false;  // the last reply lets another call follow
  bool closed_ = false;       // by the server, or by libevent

  // The last call:
  bool was_cancelled_ = false;
  bool was_still_ = false;
  bool done_ = false;
  bool connected_ = false;
  size_t received_bytes_ = 0;
  size_t answer_bytes_max_ = 0;
  int name_error_ = 0;                         // of the name service; 0: the name was resolved
  std::optional<evhttp_request_error> error_;  // why OnDone was called with null
  std::optional<HttpAnswer> answer_;

  // What follows may use what is above while it is freed.
  std::unique_ptr<event_base, Free> base_;
  std::unique_ptr<evdns_base, Free> dns_;
  std::unique_ptr<evhttp_connection, Free> connection_;
  ssl_st* ssl_ = nullptr;  // owned by the connection
};

}  // namespace dws
