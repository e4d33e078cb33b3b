// Connections that are idle are kept in the order in which they became it, and the newest is used
// first, so that the oldest end when few are needed.
#include "common/service/http/http_caller.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <iterator>
#include <system_error>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/service/http/http_channel.h"

namespace dws {
namespace {

// The same request twice has the effect of one (RFC 9110, 9.2.2).
bool MayRepeat(HttpMethod method) { return method != HttpMethod::kPost; }

// The first error of this thread's queue, which says most, and empties the queue.
std::string TlsReason() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  // A system's error has no text of its own in OpenSSL.
  if (ERR_SYSTEM_ERROR(code)) return std::generic_category().message(ERR_GET_REASON(code));
  const char* const reason = ERR_reason_error_string(code);
  return reason == nullptr ? "no reason" : reason;
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
    if (tls == nullptr) return InvalidArgumentError("OpenSSL makes no context: {}", TlsReason());
    SSL_CTX_set_min_proto_version(tls.get(), TLS1_2_VERSION);
    SSL_CTX_set_verify(tls.get(), SSL_VERIFY_PEER, nullptr);
    const bool trusts = options.ca_file.empty()
                            ? SSL_CTX_set_default_verify_paths(tls.get()) == 1
                            : SSL_CTX_load_verify_file(tls.get(), options.ca_file.c_str()) == 1;
    if (!trusts) {
      return InvalidArgumentError("no CA can be read from {}: {}", options.ca_file, TlsReason());
    }
  }
  return std::unique_ptr<HttpCaller>(
      new HttpCaller(std::move(url), std::move(options), std::move(tls)));
}

HttpCaller::HttpCaller(HttpUrl url, Options options, std::shared_ptr<ssl_ctx_st> tls)
    : url_(std::move(url)), options_(std::move(options)), tls_(std::move(tls)) {
  if (tls_ == nullptr || options_.cert_file.empty()) return;
  SSL_CTX_set_cert_cb(tls_.get(), ShowCertificate, this);
}

HttpCaller::~HttpCaller() = default;

int HttpCaller::ShowCertificate(ssl_st* ssl, void* caller) {
  auto& self = *static_cast<HttpCaller*>(caller);
  const Options& options = self.options_;
  std::string why;
  if (SSL_use_certificate_chain_file(ssl, options.cert_file.c_str()) != 1) {
    why = fmt::format("the certificate {}: {}", options.cert_file, TlsReason());
  } else if (SSL_use_PrivateKey_file(ssl, options.key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
    why = fmt::format("the key {}: {}", options.key_file, TlsReason());
  }
  if (!why.empty()) SSL_certs_clear(ssl);
  static_cast<HttpChannel*>(SSL_get_app_data(ssl))->set_lacks_certificate(!why.empty());
  {
    MutexLock lock(self.mutex_);
    if (std::exchange(self.not_shown_, why) == why) return 1;
  }
  if (!why.empty()) {
    LogWarning("client_certificate_not_shown", {{"server", self.url_.HostPort()}, {"reason", why}});
  }
  return 1;
}

std::unique_ptr<HttpChannel> HttpCaller::TakeIdle() const {
  while (true) {
    Idle newest;
    {
      MutexLock lock(mutex_);
      if (idle_.empty()) return nullptr;
      newest = std::move(idle_.back());
      idle_.pop_back();
    }
    const bool fresh = RealClock().Now() - newest.since < options_.idle_max;
    if (fresh && newest.channel->IsIdle()) return std::move(newest.channel);
  }
}

void HttpCaller::Keep(std::unique_ptr<HttpChannel> channel) const {
  if (options_.idle_connections_max == 0 || !channel->IsIdle() || channel->lacks_certificate()) {
    return;
  }
  const TimePoint now = RealClock().Now();
  std::vector<Idle> closed;  // without the lock
  MutexLock lock(mutex_);
  auto kept = std::ranges::find_if(
      idle_, [&](const Idle& each) { return now - each.since < options_.idle_max; });
  if (kept == idle_.begin() && idle_.size() == options_.idle_connections_max) ++kept;
  closed.assign(std::move_iterator(idle_.begin()), std::move_iterator(kept));
  idle_.erase(idle_.begin(), kept);
  idle_.push_back({.channel = std::move(channel), .since = now});
}

HttpOutcome HttpCaller::Call(const HttpCall& call, Duration timeout,
                             const std::function<bool()>& cancelled) const {
  const TimePoint end = RealClock().Now() + timeout;
  bool sent = false;
  if (std::unique_ptr<HttpChannel> channel = TakeIdle(); channel != nullptr) {
    HttpOutcome outcome = channel->Call(call, timeout, cancelled);
    // A server that closes an idle connection does not know of the request that is on its way.
    if (!channel->ended_unanswered() || !MayRepeat(call.method)) {
      Keep(std::move(channel));
      return outcome;
    }
    sent = outcome.sent;
  }
  auto channel = std::make_unique<HttpChannel>(url_, tls_, options_);
  HttpOutcome outcome = channel->Call(call, end - RealClock().Now(), cancelled);
  outcome.sent |= sent;
  Keep(std::move(channel));
  return outcome;
}

}  // namespace dws
