// Each call runs libevent's HTTP client on an event loop of its own. That is simple and enough: a
// call may take as long as an engine takes to load, or carries megabytes.
#include "common/service/http/http_caller.h"

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/dns.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "common/base/check.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// One pass each for a callback, for the work it defers, and for freeing.
constexpr int kLastPasses = 3;

struct Free {
  void operator()(event_base* base) const {
    // The library frees a connection in its last deferred callback, which only the loop runs.
    for (int pass = 0; pass < kLastPasses; ++pass) event_base_loop(base, EVLOOP_NONBLOCK);
    event_base_free(base);
  }
  void operator()(evdns_base* base) const { evdns_base_free(base, 0); }
  void operator()(event* one) const { event_free(one); }
  void operator()(evhttp_connection* connection) const { evhttp_connection_free(connection); }
};

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

// One call with its own event loop. Used by one thread.
class Exchange {
 public:
  Exchange(const HttpUrl& url, ssl_ctx_st* tls, size_t answer_bytes_max)
      : url_(url), tls_(tls), answer_bytes_max_(answer_bytes_max), base_(event_base_new()) {
    DWS_CHECK(base_ != nullptr);
  }

  HttpOutcome Run(const HttpCall& call, Duration timeout, const std::function<bool()>& cancelled);

 private:
  bool Connect();
  bool Send(const HttpCall& call);
  void OnDone(evhttp_request* request);
  void OnTick();
  Status Failure(Duration timeout) const;

  const HttpUrl& url_;
  ssl_ctx_st* const tls_;
  const size_t answer_bytes_max_;
  std::unique_ptr<event_base, Free> base_;
  std::unique_ptr<event, Free> tick_;
  std::unique_ptr<evdns_base, Free> dns_;
  std::unique_ptr<evhttp_connection, Free> connection_;
  SSL* ssl_ = nullptr;  // owned by the connection
  const std::function<bool()>* cancelled_ = nullptr;
  bool was_cancelled_ = false;
  bool done_ = false;
  bool connected_ = false;
  std::optional<evhttp_request_error> error_;  // why OnDone was called with null
  std::optional<HttpAnswer> answer_;
};

HttpOutcome Exchange::Run(const HttpCall& call, Duration timeout,
                          const std::function<bool()>& cancelled) {
  if (timeout <= Duration::zero()) {
    return {.answer = DeadlineExceededError("no time is left to call {}", url_.ToString())};
  }
  if (!Connect() || !Send(call)) {
    return {.answer = UnavailableError("cannot connect to {}", url_.HostPort())};
  }
  cancelled_ = &cancelled;
  if (cancelled != nullptr) {
    tick_.reset(event_new(
        base_.get(), -1, EV_PERSIST,
        [](int, short, void* on) { static_cast<Exchange*>(on)->OnTick(); }, this));
    const timeval tick = ToTimeval(limits::kTick);
    event_add(tick_.get(), &tick);
  }
  const timeval end = ToTimeval(timeout);
  if (!done_) {
    event_base_loopexit(base_.get(), &end);
    event_base_dispatch(base_.get());
  }
  ERR_clear_error();  // OpenSSL's queue of this thread
  const bool is_open = ssl_ == nullptr || SSL_is_init_finished(ssl_) == 1;
  HttpOutcome outcome{.answer = HttpAnswer{}, .sent = is_open && (connected_ || !done_)};
  if (answer_.has_value()) {
    outcome.answer = *std::move(answer_);
  } else {
    outcome.answer = Failure(timeout);
  }
  return outcome;
}

bool Exchange::Connect() {
  // The library tries only one address of a name, and servers on "localhost" listen on this one.
  const std::string host = url_.host == "localhost" ? "127.0.0.1" : url_.host;
  if (!url_.IsAddress() && url_.host != "localhost") {
    dns_.reset(evdns_base_new(base_.get(), 0));
    // Without resolv.conf, /etc/hosts still works.
    if (dns_ != nullptr) {
      evdns_base_resolv_conf_parse(dns_.get(), DNS_OPTIONS_ALL, "/etc/resolv.conf");
    }
  }
  bufferevent* stream = nullptr;
  constexpr int kOptions = BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS;
  if (tls_ != nullptr) {
    ssl_ = SSL_new(tls_);
    if (ssl_ == nullptr) return false;
    X509_VERIFY_PARAM* const param = SSL_get0_param(ssl_);
    const bool named = url_.IsAddress()
                           ? X509_VERIFY_PARAM_set1_ip_asc(param, url_.host.c_str()) == 1
                           : SSL_set1_host(ssl_, url_.host.c_str()) == 1 &&
                                 SSL_set_tlsext_host_name(ssl_, url_.host.c_str()) == 1;
    if (named) {
      stream = bufferevent_openssl_socket_new(base_.get(), -1, ssl_, BUFFEREVENT_SSL_CONNECTING,
                                              kOptions);
    }
    if (stream == nullptr) SSL_free(ssl_);
  } else {
    stream = bufferevent_socket_new(base_.get(), -1, kOptions);
  }
  if (stream == nullptr) return false;
  connection_.reset(evhttp_connection_base_bufferevent_new(base_.get(), dns_.get(), stream,
                                                           host.c_str(), url_.port));
  if (connection_ == nullptr) {
    bufferevent_free(stream);
    return false;
  }
  // A server may answer, and close, before it has read a whole request.
  evhttp_connection_set_flags(connection_.get(), EVHTTP_CON_READ_ON_WRITE_ERROR);
  evhttp_connection_set_max_headers_size(connection_.get(), limits::kHttpHeadBytesMax);
  evhttp_connection_set_max_body_size(connection_.get(), static_cast<ssize_t>(answer_bytes_max_));
  // Only the call's deadline counts, so this one never fires first.
  const timeval never = ToTimeval(std::chrono::hours(24));
  evhttp_connection_set_timeout_tv(connection_.get(), &never);
  return true;
}

bool Exchange::Send(const HttpCall& call) {
  evhttp_request* const request = evhttp_request_new(
      [](evhttp_request* reply, void* on) { static_cast<Exchange*>(on)->OnDone(reply); }, this);
  if (request == nullptr) return false;
  evhttp_request_set_error_cb(request, [](evhttp_request_error error, void* on) {
    static_cast<Exchange*>(on)->error_ = error;
  });
  evkeyvalq* const headers = evhttp_request_get_output_headers(request);
  evhttp_add_header(headers, "Host", url_.HostHeader().c_str());
  evhttp_add_header(headers, "Connection", "close");
  for (const auto& [name, value] : call.headers) {
    // The library refuses a value that would end the header.
    if (evhttp_add_header(headers, name.c_str(), value.c_str()) != 0) {
      evhttp_request_free(request);
      return false;
    }
  }
  if (call.method == HttpMethod::kPost || call.method == HttpMethod::kPut) {
    evbuffer_add(evhttp_request_get_output_buffer(request), call.body.data(), call.body.size());
  }
  // The library owns the request from here on; after an error it has already freed it.
  return evhttp_make_request(connection_.get(), request, ToType(call.method),
                             (url_.path + call.target).c_str()) == 0;
}

// A null request: the connection failed after it was established. Code 0: it was not established.
void Exchange::OnDone(evhttp_request* request) {
  done_ = true;
  const int code = request == nullptr ? 0 : evhttp_request_get_response_code(request);
  connected_ = request == nullptr || code != 0;
  if (code != 0) {
    evbuffer* const input = evhttp_request_get_input_buffer(request);
    HttpAnswer answer{.code = code, .body = std::string(evbuffer_get_length(input), '\0')};
    evbuffer_remove(input, answer.body.data(), answer.body.size());
    const evkeyvalq* const headers = evhttp_request_get_input_headers(request);
    for (const evkeyval* each = headers->tqh_first; each != nullptr; each = each->next.tqe_next) {
      std::string name = each->key;
      std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
      answer.headers.emplace_back(std::move(name), each->value);
    }
    answer_ = std::move(answer);
  }
  event_base_loopbreak(base_.get());
}

void Exchange::OnTick() {
  if (!(*cancelled_)()) return;
  was_cancelled_ = true;
  event_base_loopbreak(base_.get());
}

Status Exchange::Failure(Duration timeout) const {
  if (was_cancelled_) return CancelledError("the call was cancelled");
  if (!done_) {
    return DeadlineExceededError("no complete reply within {:.3g} s", ToSeconds(timeout));
  }
  if (ssl_ != nullptr && SSL_get_verify_result(ssl_) != X509_V_OK) {
    return FailedPreconditionError("the certificate of {} is not accepted: {}", url_.HostPort(),
                                   X509_verify_cert_error_string(SSL_get_verify_result(ssl_)));
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

Status TlsError(const std::string& what) {
  const unsigned long code = ERR_peek_last_error();
  const char* const reason = ERR_reason_error_string(code);
  ERR_clear_error();
  return InvalidArgumentError("{}: {}", what, reason == nullptr ? "no reason" : reason);
}

}  // namespace

const char* ToString(HttpMethod method) {
  switch (method) {
    case HttpMethod::kGet:
      return "GET";
    case HttpMethod::kHead:
      return "HEAD";
    case HttpMethod::kPut:
      return "PUT";
    case HttpMethod::kPost:
      return "POST";
    case HttpMethod::kDelete:
      return "DELETE";
    case HttpMethod::kOptions:
      return "OPTIONS";
  }
  return "";
}

Result<std::unique_ptr<HttpCaller>> HttpCaller::Create(HttpUrl url, Options options) {
  DWS_CHECK(options.answer_bytes_max > 0);
  std::shared_ptr<ssl_ctx_st> tls;
  if (url.tls) {
    tls.reset(SSL_CTX_new(TLS_client_method()), [](SSL_CTX* context) { SSL_CTX_free(context); });
    if (tls == nullptr) return TlsError("OpenSSL cannot make a context");
    SSL_CTX_set_min_proto_version(tls.get(), TLS1_2_VERSION);
    SSL_CTX_set_verify(tls.get(), SSL_VERIFY_PEER, nullptr);
    const bool trusts = options.ca_file.empty()
                            ? SSL_CTX_set_default_verify_paths(tls.get()) == 1
                            : SSL_CTX_load_verify_file(tls.get(), options.ca_file.c_str()) == 1;
    if (!trusts) return TlsError(fmt::format("no CA can be read from {}", options.ca_file));
  }
  return std::unique_ptr<HttpCaller>(
      new HttpCaller(std::move(url), std::move(options), std::move(tls)));
}

HttpCaller::HttpCaller(HttpUrl url, Options options, std::shared_ptr<ssl_ctx_st> tls)
    : url_(std::move(url)), options_(std::move(options)), tls_(std::move(tls)) {}

HttpCaller::~HttpCaller() = default;

HttpOutcome HttpCaller::Call(const HttpCall& call, Duration timeout,
                             const std::function<bool()>& cancelled) const {
  return Exchange(url_, tls_.get(), options_.answer_bytes_max).Run(call, timeout, cancelled);
}

}  // namespace dws
