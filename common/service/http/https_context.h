// TLS as an HTTP server over OpenSSL wants it.
#pragma once

#include <openssl/ssl.h>

#include <functional>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/service/security/credentials.h"
#include "common/service/security/tls_files.h"

namespace dws {

struct SslContextDeleter {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using SslContext = std::unique_ptr<SSL_CTX, SslContextDeleter>;

// TLS 1.2 or 1.3; the handshake fails unless the client shows a certificate that the CA signed and
// that has a role in the job, whichever. Make a new one when Credentials::current() has another
// generation: SSL objects made from an old one keep it alive. INTERNAL: OpenSSL refuses files that
// CheckTlsMaterial let pass.
Result<SslContext> MakeHttpsContext(const TlsMaterial& material, const std::string& job_id);

// For HttpEndpoint: the context of the credentials' current files, made anew when they change. When
// OpenSSL refuses them, which is logged, the one before; null: there is none. Threads: one at a
// time. Without credentials there is no source: plain HTTP.
std::function<std::shared_ptr<SSL_CTX>()> MakeHttpsContextSource(
    std::shared_ptr<Credentials> credentials, std::string job_id);

}  // namespace dws
