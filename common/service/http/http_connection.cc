#include "common/service/http/http_connection.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <utility>

#include "common/model/limits.h"

namespace dws {
namespace {

constexpr std::string_view kHeadEnd = "\r\n\r\n";
constexpr std::chrono::milliseconds kLingerTimeout{1000};
constexpr size_t kLingerBytesMax = limits::kHttpHeadBytesMax + limits::kHttpBodyBytesMax;

bufferevent* OpenStream(event_base* base, UniqueFd socket, ssl_ctx_st* tls) {
  // Callbacks are deferred, so that none runs inside one of our calls to the library.
  constexpr int kOptions = BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS;
  if (tls == nullptr) {
    bufferevent* stream = bufferevent_socket_new(base, socket.get(), kOptions);
    if (stream != nullptr) static_cast<void>(socket.release());
    return stream;
  }
  SSL* ssl = SSL_new(tls);
  if (ssl == nullptr) return nullptr;
  bufferevent* stream =
      bufferevent_openssl_socket_new(base, socket.get(), ssl, BUFFEREVENT_SSL_ACCEPTING, kOptions);
  if (stream == nullptr) {
    SSL_free(ssl);
    return nullptr;
  }
  static_cast<void>(socket.release());
  bufferevent_openssl_set_allow_dirty_shutdown(stream, 1);
  return stream;
}

}  // namespace

std::unique_ptr<HttpConnection> HttpConnection::Open(event_base* base, UniqueFd socket,
                                                     ssl_ctx_st* tls,
                                                     std::chrono::milliseconds timeout, uint64_t id,
                                                     const Callbacks& callbacks) {
  std::unique_ptr<HttpConnection> connection(new HttpConnection(timeout, id, callbacks));
  HttpConnection* self = connection.get();
  self->stream_ = OpenStream(base, std::move(socket), tls);
  self->timer_ = evtimer_new(
      base, [](int, short, void* on) { static_cast<HttpConnection*>(on)->End(); }, self);
  if (self->stream_ == nullptr || self->timer_ == nullptr) return nullptr;
  bufferevent_setcb(
      self->stream_, [](bufferevent*, void* on) { static_cast<HttpConnection*>(on)->OnReadable(); },
      [](bufferevent*, void* on) { static_cast<HttpConnection*>(on)->OnWritten(); },
      [](bufferevent*, short what, void* on) { static_cast<HttpConnection*>(on)->OnEvent(what); },
      self);
  // The library buffers at most this much input.
  bufferevent_setwatermark(self->stream_, EV_READ, 0, limits::kHttpHeadBytesMax + 1);
  bufferevent_enable(self->stream_, EV_READ | EV_WRITE);
  // One deadline for the whole request, handshake included. A client cannot extend it by sending a
  // byte now and then.
  self->SetTimeout(timeout);
  return connection;
}

HttpConnection::~HttpConnection() {
  if (timer_ != nullptr) event_free(timer_);
  if (stream_ != nullptr) bufferevent_free(stream_);  // and the socket, and the SSL object
}

void HttpConnection::SetTimeout(std::chrono::milliseconds timeout) {
  const timeval value = {.tv_sec = timeout.count() / 1000,
                         .tv_usec = timeout.count() % 1000 * 1000};
  evtimer_add(timer_, &value);
}

void HttpConnection::End() { callbacks_.on_end(id_); }  // destroys this object

void HttpConnection::OnReadable() {
  evbuffer* input = bufferevent_get_input(stream_);
  if (state_ == State::kLingering) {
    const size_t size = evbuffer_get_length(input);
    evbuffer_drain(input, size);
    discarded_bytes_ += size;
    if (discarded_bytes_ > kLingerBytesMax) End();
    return;
  }
  if (state_ != State::kReading) return;
  const evbuffer_ptr end = evbuffer_search(input, kHeadEnd.data(), kHeadEnd.size(), nullptr);
  const size_t head_bytes =
      end.pos < 0 ? evbuffer_get_length(input) : static_cast<size_t>(end.pos) + kHeadEnd.size();
  if (head_bytes > limits::kHttpHeadBytesMax) return Answer(HttpError(431));
  if (end.pos < 0) return;
  std::string head(head_bytes, '\0');
  evbuffer_remove(input, head.data(), head.size());
  HttpRequest request = ParseHttpRequest(head);
  if (request.refusal != 0) return Answer(HttpError(request.refusal));
  head_only_ = request.head_only;
  state_ = State::kWaiting;
  evtimer_del(timer_);
  bufferevent_disable(stream_, EV_READ);
  callbacks_.on_request(id_, std::move(request));
}

void HttpConnection::Reply(const HttpReply& reply) {
  if (state_ == State::kWaiting) Answer(reply);
}

void HttpConnection::Answer(const HttpReply& reply) {
  state_ = State::kWriting;
  bufferevent_disable(stream_, EV_READ);
  SetTimeout(timeout_);
  const std::string bytes = FormatHttpReply(reply, head_only_);
  bufferevent_write(stream_, bytes.data(), bytes.size());
}

void HttpConnection::OnWritten() {
  if (state_ != State::kWriting || evbuffer_get_length(bufferevent_get_output(stream_)) > 0) return;
  state_ = State::kLingering;
  if (SSL* ssl = bufferevent_openssl_get_ssl(stream_); ssl != nullptr) {
    SSL_shutdown(ssl);  // writes one small record; it does not matter if it does not fit
    ERR_clear_error();
  }
  ::shutdown(bufferevent_getfd(stream_), SHUT_WR);
  SetTimeout(kLingerTimeout);
  evbuffer* input = bufferevent_get_input(stream_);
  evbuffer_drain(input, evbuffer_get_length(input));
  bufferevent_enable(stream_, EV_READ);
}

void HttpConnection::OnEvent(short what) {
  if ((what & BEV_EVENT_CONNECTED) != 0) return;  // TLS is up
  ERR_clear_error();                              // this thread also serves other connections
  // A client may close its half after sending the request, and still read the reply.
  const bool half_closed = (what & BEV_EVENT_EOF) != 0 && !idle();
  if (!half_closed) End();
}

}  // namespace dws
