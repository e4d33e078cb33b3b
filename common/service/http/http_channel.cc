// A call runs libevent's HTTP client on the connection's own event loop. That is simple and enough:
// a call may take as long as an engine takes to load, or carries megabytes.
//
// libevent closes a connection that says something while no call is made on it, and tells that by
// OnClosed. What it does not look at (HTTP/1.0, headers that contradict each other, bytes after a
// reply) is looked at here, and ends the connection too.
#include "common/service/http/http_channel.h"

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/dns.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <cctype>

#include "common/base/check.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// One pass each for a callback, for the work it defers, and for freeing.
constexpr int kLastPasses = 3;

void RunPasses(event_base* base) {
  for (int pass = 0; pass < kLastPasses; ++pass) event_base_loop(base, EVLOOP_NONBLOCK);
}

timeval ToTimeval(Duration duration) {
  const auto us = std::chrono::ceil<std::chrono::microseconds>(duration).count();
  return {.tv_sec = us / 1'000'000, .tv_usec = us % 1'000'000};
}

evhttp_cmd_type ToType(HttpMethod method) {
  switch (method) {
    case HttpMethod::kGet:
      return EVHTTP_REQ_GET;
    case HttpMethod::kHead:
      return EVHTTP_REQ_HEAD;
    case HttpMethod::kPut:
      return EVHTTP_REQ_PUT;
    case HttpMethod::kPost:
      return EVHTTP_REQ_POST;
    case HttpMethod::kDelete:
      return EVHTTP_REQ_DELETE;
    case HttpMethod::kOptions:
      return EVHTTP_REQ_OPTIONS;
  }
  return EVHTTP_REQ_GET;
}

std::string Lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// The first bytes after a reply that libevent knows the end of are those of the next one.
bool EndIsPlain(const std::vector<std::pair<std::string, std::string>>& headers) {
  size_t lengths = 0;
  size_t encodings = 0;
  for (const auto& [name, value] : headers) {
    if (name == "content-length") ++lengths;
    if (name != "transfer-encoding") continue;
    ++encodings;
    if (Lower(value) != "chunked") return false;
  }
  return lengths + encodings <= 1;
}

}  // namespace

struct HttpChannel::Watch {
  HttpChannel* channel;
  const HttpCall& call;
  const std::function<bool()>& cancelled;
  TimePoint moved_at;  // when a byte last went or came
  size_t unsent_bytes = 0;
  size_t received_bytes = 0;
};

void HttpChannel::Free::operator()(event_base* base) const {
  // The library frees a connection in its last deferred callback, which only the loop runs.
  RunPasses(base);
  event_base_free(base);
}
void HttpChannel::Free::operator()(evdns_base* base) const {
  // 1: a lookup that runs ends with its callback, which lets go of the connection.
  evdns_base_free(base, 1);
}
void HttpChannel::Free::operator()(event* one) const { event_free(one); }
void HttpChannel::Free::operator()(evhttp_connection* connection) const {
  evhttp_connection_free(connection);
}

HttpChannel::HttpChannel(const HttpUrl& url, std::shared_ptr<ssl_ctx_st> tls,
                         const HttpCaller::Options& options)
    : url_(url),
      tls_(std::move(tls)),
      options_(options),
      keep_(options.idle_connections_max > 0),
      base_(event_base_new()) {
  DWS_CHECK(base_ != nullptr);
}

HttpChannel::~HttpChannel() = default;

HttpOutcome HttpChannel::Call(const HttpCall& call, Duration timeout,
                              const std::function<bool()>& cancelled) {
  was_cancelled_ = was_still_ = done_ = connected_ = leaves_open_ = false;
  received_bytes_ = 0;
  name_error_ = 0;
  error_.reset();
  answer_.reset();
  if (timeout <= Duration::zero()) {
    return {.answer = DeadlineExceededError("no time is left to call {}", url_.ToString())};
  }
  if (connection_ == nullptr && !Connect()) {
    return {.answer = UnavailableError("cannot connect to {}", url_.HostPort())};
  }
  if (const Status sent = Send(call); !sent.ok()) return {.answer = sent};
  // Both end with the call: a timer that is left would end a later one.
  std::unique_ptr<event, Free> end;
  std::unique_ptr<event, Free> tick;
  if (!done_) {
    end.reset(event_new(
        base_.get(), -1, 0,
        [](int, short, void* base) { event_base_loopbreak(static_cast<event_base*>(base)); },
        base_.get()));
    const timeval left = ToTimeval(timeout);
    event_add(end.get(), &left);
    Watch watch{
        .channel = this, .call = call, .cancelled = cancelled, .moved_at = RealClock().Now()};
    if (cancelled != nullptr || call.still_max > Duration::zero()) {
      tick.reset(event_new(
          base_.get(), -1, EV_PERSIST,
          [](int, short, void* on) {
            auto& of = *static_cast<Watch*>(on);
            of.channel->OnTick(of);
          },
          &watch));
      const timeval interval = ToTimeval(limits::kTick);
      event_add(tick.get(), &interval);
    }
    event_base_dispatch(base_.get());
  }
  ERR_clear_error();  // OpenSSL's queue of this thread
  const bool is_open = ssl_ == nullptr || SSL_is_init_finished(ssl_) == 1;
  HttpOutcome outcome{.answer = HttpAnswer{}, .sent = is_open && (connected_ || !done_)};
  if (answer_.has_value()) {
    outcome.answer = *std::move(answer_);
  } else {
    outcome.answer = Failure(was_still_ ? call.still_max : timeout);
  }
  return outcome;
}

bool HttpChannel::IsIdle() {
  if (!leaves_open_ || connection_ == nullptr) return false;
  RunPasses(base_.get());  // if the server has closed it or sent more, libevent closes it here
  bufferevent* const stream = evhttp_connection_get_bufferevent(connection_.get());
  return !closed_ && evbuffer_get_length(bufferevent_get_input(stream)) == 0 &&
         evbuffer_get_length(bufferevent_get_output(stream)) == 0;
}

bool HttpChannel::ended_unanswered() const {
  return done_ && connected_ && received_bytes_ == 0 && !was_cancelled_;
}

bool HttpChannel::Connect() {
  // The library tries only one address of a name, and servers on "localhost" listen on this one.
  const std::string host = url_.host == "localhost" ? "127.0.0.1" : url_.host;
  if (!url_.IsAddress() && url_.host != "localhost") {
    dns_.reset(evdns_base_new(base_.get(), 0));
    // Without the file, /etc/hosts still works.
    if (dns_ != nullptr) {
      evdns_base_resolv_conf_parse(dns_.get(), DNS_OPTIONS_ALL, options_.resolver_file.c_str());
    }
  }
  bufferevent* stream = nullptr;
  constexpr int kOptions = BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS;
  if (tls_ != nullptr) {
    ssl_ = SSL_new(tls_.get());
    if (ssl_ == nullptr) return false;
    SSL_set_app_data(ssl_, this);
    X509_VERIFY_PARAM* const param = SSL_get0_param(ssl_);
    const std::string& name = options_.server_name.empty() ? url_.host : options_.server_name;
    const bool named = options_.server_name.empty() && url_.IsAddress()
                           ? X509_VERIFY_PARAM_set1_ip_asc(param, name.c_str()) == 1
                           : SSL_set1_host(ssl_, name.c_str()) == 1 &&
                                 SSL_set_tlsext_host_name(ssl_, name.c_str()) == 1;
    if (named) {
      stream = bufferevent_openssl_socket_new(base_.get(), -1, ssl_, BUFFEREVENT_SSL_CONNECTING,
                                              kOptions);
    }
    if (stream == nullptr) SSL_free(ssl_);
  } else {
    stream = bufferevent_socket_new(base_.get(), -1, kOptions);
  }
  if (stream == nullptr) {
    ssl_ = nullptr;
    return false;
  }
  connection_.reset(evhttp_connection_base_bufferevent_new(base_.get(), dns_.get(), stream,
                                                           host.c_str(), url_.port));
  if (connection_ == nullptr) {
    bufferevent_free(stream);
    ssl_ = nullptr;
    return false;
  }
  evbuffer_add_cb(
      bufferevent_get_input(stream),
      [](evbuffer*, const evbuffer_cb_info* change, void* on) {
        static_cast<HttpChannel*>(on)->received_bytes_ += change->n_added;
      },
      this);
  evhttp_connection_set_closecb(
      connection_.get(),
      [](evhttp_connection*, void* on) { static_cast<HttpChannel*>(on)->closed_ = true; }, this);
  evhttp_connection_set_max_headers_size(connection_.get(), limits::kHttpHeadBytesMax);
  // Only the call's deadline counts, so this one never fires first.
  const timeval never = ToTimeval(std::chrono::hours(24));
  evhttp_connection_set_timeout_tv(connection_.get(), &never);
  return true;
}

Status HttpChannel::Send(const HttpCall& call) {
  const Status failed = UnavailableError("cannot send a request to {}", url_.HostPort());
  answer_bytes_max_ = call.answer_bytes_max > 0 ? call.answer_bytes_max : options_.answer_bytes_max;
  evhttp_connection_set_max_body_size(connection_.get(), static_cast<ssize_t>(answer_bytes_max_));
  evhttp_request* const request = evhttp_request_new(
      [](evhttp_request* reply, void* on) { static_cast<HttpChannel*>(on)->OnDone(reply); }, this);
  if (request == nullptr) return failed;
  evhttp_request_set_error_cb(request, [](evhttp_request_error error, void* on) {
    static_cast<HttpChannel*>(on)->error_ = error;
  });
  evkeyvalq* const headers = evhttp_request_get_output_headers(request);
  evhttp_add_header(headers, "Host", url_.HostHeader().c_str());
  evhttp_add_header(headers, "Connection", keep_ ? "keep-alive" : "close");
  for (const auto& [name, value] : call.headers) {
    // The library refuses a value that would end the header.
    if (evhttp_add_header(headers, name.c_str(), value.c_str()) != 0) {
      evhttp_request_free(request);
      return InvalidArgumentError("the header {} has a line break: nothing is sent to {}", name,
                                  url_.HostPort());
    }
  }
  if (call.method == HttpMethod::kPost || call.method == HttpMethod::kPut) {
    evbuffer_add(evhttp_request_get_output_buffer(request), call.body.data(), call.body.size());
  }
  // A server may answer, and close, before it has read a whole request. (With this flag, a
  // connection that ends in the middle of a reply's head is noticed at the deadline only.)
  evhttp_connection_set_flags(connection_.get(),
                              call.body.empty() ? 0 : EVHTTP_CON_READ_ON_WRITE_ERROR);
  // Else the last bytes of a request wait until the server has acknowledged those before.
  const int fd = bufferevent_getfd(evhttp_connection_get_bufferevent(connection_.get()));
  const int on = 1;
  if (fd >= 0) ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  // The library owns the request from here on; after an error it has already freed it.
  const int made = evhttp_make_request(connection_.get(), request, ToType(call.method),
                                       (url_.path + call.target).c_str());
  return made == 0 ? OkStatus() : failed;
}

// A null request: the connection failed after it was established, or the name was not resolved.
// Code 0: it was not established.
void HttpChannel::OnDone(evhttp_request* request) {
  done_ = true;
  const int code = request == nullptr ? 0 : evhttp_request_get_response_code(request);
  if (code == 0) {
    name_error_ =
        bufferevent_socket_get_dns_error(evhttp_connection_get_bufferevent(connection_.get()));
  }
  connected_ = name_error_ == 0 && (request == nullptr || code != 0);
  if (code != 0) {
    evbuffer* const input = evhttp_request_get_input_buffer(request);
    HttpAnswer answer{.code = code, .body = std::string(evbuffer_get_length(input), '\0')};
    evbuffer_remove(input, answer.body.data(), answer.body.size());
    const evkeyvalq* const headers = evhttp_request_get_input_headers(request);
    for (const evkeyval* each = headers->tqh_first; each != nullptr; each = each->next.tqe_next) {
      answer.headers.emplace_back(Lower(each->key), each->value);
    }
    const bool wants_close = std::ranges::any_of(answer.headers, [](const auto& header) {
      return header.first == "connection" &&
             Lower(header.second).find("close") != std::string::npos;
    });
    // Code 1xx: the real reply comes after it.
    leaves_open_ = keep_ && !wants_close && EndIsPlain(answer.headers) && code >= 200 &&
                   request->major == 1 && request->minor >= 1;
    answer_ = std::move(answer);
  }
  event_base_loopbreak(base_.get());
}

void HttpChannel::OnTick(Watch& watch) {
  bufferevent* const stream = evhttp_connection_get_bufferevent(connection_.get());
  const size_t unsent = evbuffer_get_length(bufferevent_get_output(stream));
  if (unsent != watch.unsent_bytes || received_bytes_ != watch.received_bytes) {
    watch.unsent_bytes = unsent;
    watch.received_bytes = received_bytes_;
    watch.moved_at = RealClock().Now();
  }
  was_cancelled_ = watch.cancelled != nullptr && watch.cancelled();
  was_still_ = watch.call.still_max > Duration::zero() &&
               RealClock().Now() - watch.moved_at >= watch.call.still_max;
  if (was_cancelled_ || was_still_) event_base_loopbreak(base_.get());
}

Status HttpChannel::Failure(Duration timeout) const {
  if (was_cancelled_) return CancelledError("the call was cancelled");
  if (!done_) {
    return DeadlineExceededError("no {} {:.3g} s",
                                 was_still_ ? "byte went or came for" : "complete reply within",
                                 ToSeconds(timeout));
  }
  if (ssl_ != nullptr && SSL_get_verify_result(ssl_) != X509_V_OK) {
    return FailedPreconditionError("the certificate of {} is not accepted: {}", url_.HostPort(),
                                   X509_verify_cert_error_string(SSL_get_verify_result(ssl_)));
  }
  if (!connected_ && name_error_ != 0) {
    return UnavailableError("the name {} is not resolved: {}", url_.host,
                            evutil_gai_strerror(name_error_));
  }
  if (!connected_) {
    return UnavailableError("cannot connect to {}: is it running, and listening there{}?",
                            url_.HostPort(), tls_ != nullptr ? " with TLS" : "");
  }
  if (error_ == EVREQ_HTTP_DATA_TOO_LONG) {
    return ResourceExhaustedError("the reply is larger than {} bytes", answer_bytes_max_);
  }
  if (error_ == EVREQ_HTTP_INVALID_HEADER) {
    return FailedPreconditionError("the reply is not HTTP, or its headers are too long");
  }
  return UnavailableError("the connection closed before the reply was complete");
}

}  // namespace dws
