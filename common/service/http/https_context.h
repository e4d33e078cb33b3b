// Makes the OpenSSL contexts of the HTTP server.
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

// TLS 1.2 or 1.3. The handshake fails unless the client shows a certificate that the CA signed and
// that has any role in the job. Make a new context when Credentials::current() has another
// generation; SSL objects made from an old context keep it alive. INTERNAL: OpenSSL refuses files
// that CheckTlsMaterial accepted.
Result<SslContext> MakeHttpsContext(const TlsMaterial& material, const std::string& job_id);

// For HttpEndpoint: returns the context of the credentials' current files, and makes a new one when
// they change. If OpenSSL refuses the files, it logs that and returns the previous context, or null
// if there is none. Threads: one at a time. Without credentials the source is empty, which means
// plain HTTP.
std::function<std::shared_ptr<SSL_CTX>()> MakeHttpsContextSource(
    std::shared_ptr<Credentials> credentials, std::string job_id);

}  // namespace dws
