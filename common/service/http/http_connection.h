// One connection of an HttpEndpoint: reads one request, writes one reply, ends. Bytes and time are
// limited in each state, so every connection ends.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "common/base/unique_fd.h"
#include "common/service/http/http_message.h"

struct bufferevent;
struct event;
struct event_base;
struct ssl_ctx_st;

namespace dws {

// Lifecycle: reading -> waiting for Reply -> writing -> lingering -> on_end. While lingering it
// discards what the client still sends: closing at once would reset the connection, and the client
// could lose the reply. Threads: only the one that runs `base`.
class HttpConnection {
 public:
  struct Callbacks {
    std::function<void(uint64_t id, HttpRequest request)> on_request;  // at most once
    std::function<void(uint64_t id)> on_end;  // the last call, if any; destroys the connection
  };

  // A null `tls` means no TLS. The client has `timeout` to send the request, and again to take the
  // reply. `callbacks` outlive the connection. Returns null when memory cannot be allocated.
  static std::unique_ptr<HttpConnection> Open(event_base* base, UniqueFd socket, ssl_ctx_st* tls,
                                              std::chrono::milliseconds timeout, uint64_t id,
                                              const Callbacks& callbacks);
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  // Call it once, after on_request.
  void Reply(const HttpReply& reply);

  // Returns whether the request has not arrived yet, or the reply is sent: then destroying the
  // connection loses nothing.
  bool idle() const { return state_ == State::kReading || state_ == State::kLingering; }

 private:
  enum class State { kReading, kWaiting, kWriting, kLingering };
  HttpConnection(std::chrono::milliseconds timeout, uint64_t id, const Callbacks& callbacks)
      : timeout_(timeout), id_(id), callbacks_(callbacks) {}

  void OnReadable();
  void OnWritten();
  void OnEvent(short what);
  void Answer(const HttpReply& reply);
  void SetTimeout(std::chrono::milliseconds timeout);
  void End();

  const std::chrono::milliseconds timeout_;
  const uint64_t id_;
  const Callbacks& callbacks_;
  State state_ = State::kReading;
  bool head_only_ = false;
  size_t discarded_bytes_ = 0;
  bufferevent* stream_ = nullptr;
  event* timer_ = nullptr;
};

}  // namespace dws
