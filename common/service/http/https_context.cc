#include "common/service/http/https_context.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <utility>

#include "common/base/log/log.h"
#include "common/service/security/x509_identities.h"

namespace dws {
namespace {

Status OpenSslError(std::string_view what) {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* const reason = ERR_reason_error_string(code);
  return InternalError("OpenSSL refuses {}: {}", what, reason == nullptr ? "no reason" : reason);
}

// The slot in which the context keeps the job's id, which is freed with the context.
int JobIndex() {
  static const int index = SSL_CTX_get_ex_new_index(
      0, nullptr, nullptr, nullptr, [](void*, void* job, CRYPTO_EX_DATA*, int, long, void*) {
        delete static_cast<std::string*>(job);
      });
  return index;
}

// Runs after OpenSSL has verified the chain: the client's certificate also needs a role in the job.
int VerifyRole(int verified, X509_STORE_CTX* store) {
  if (verified != 1 || X509_STORE_CTX_get_error_depth(store) != 0) return verified;
  const auto* const ssl = static_cast<const SSL*>(
      X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
  const auto* const job =
      static_cast<const std::string*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), JobIndex()));
  const auto uris = UriNames(X509_STORE_CTX_get_current_cert(store));
  const bool has_role = std::any_of(uris.begin(), uris.end(), [job](const std::string& uri) {
    const Result<Identity> identity = ParseIdentity(uri);
    return identity.ok() && identity->job_id == *job;
  });
  if (has_role) return 1;
  X509_STORE_CTX_set_error(store, X509_V_ERR_APPLICATION_VERIFICATION);
  return 0;
}

Status AddAuthorities(SSL_CTX& context, const std::string& pem) {
  const std::unique_ptr<BIO, decltype(&BIO_free_all)> bio(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &BIO_free_all);
  while (X509* const authority = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    const bool added = X509_STORE_add_cert(SSL_CTX_get_cert_store(&context), authority) == 1 &&
                       SSL_CTX_add_client_CA(&context, authority) == 1;
    X509_free(authority);
    if (!added) return OpenSslError("a certificate of --tls-ca");
  }
  ERR_clear_error();  // the end of the file
  return OkStatus();
}

Status UseOwn(SSL_CTX& context, const TlsMaterial& material) {
  const auto open = [](const std::string& pem) {
    return std::unique_ptr<BIO, decltype(&BIO_free_all)>(
        BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &BIO_free_all);
  };
  const auto bio = open(material.cert_pem);
  bool own = true;
  while (X509* const certificate = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    const bool used = own ? SSL_CTX_use_certificate(&context, certificate) == 1
                          : SSL_CTX_add1_chain_cert(&context, certificate) == 1;
    X509_free(certificate);
    if (!used) return OpenSslError("the certificate of --tls-cert");
    own = false;
  }
  ERR_clear_error();  // the end of the file
  EVP_PKEY* const key =
      PEM_read_bio_PrivateKey(open(material.key_pem).get(), nullptr, nullptr, nullptr);
  const bool used = key != nullptr && SSL_CTX_use_PrivateKey(&context, key) == 1;
  EVP_PKEY_free(key);
  return used ? OkStatus() : OpenSslError("the key of --tls-key");
}

}  // namespace

Result<SslContext> MakeHttpsContext(const TlsMaterial& material, const std::string& job_id) {
  SslContext context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr) return OpenSslError("to make a context");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  // No session is resumed, so that every connection is verified.
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, VerifyRole);
  SSL_CTX_set_ex_data(context.get(), JobIndex(), new std::string(job_id));
  DWS_RETURN_IF_ERROR(AddAuthorities(*context, material.ca_pem));
  DWS_RETURN_IF_ERROR(UseOwn(*context, material));
  return context;
}

std::function<std::shared_ptr<SSL_CTX>()> MakeHttpsContextSource(
    std::shared_ptr<Credentials> credentials, std::string job_id) {
  if (credentials == nullptr) return nullptr;
  return [credentials = std::move(credentials), job_id = std::move(job_id),
          context = std::shared_ptr<SSL_CTX>(),
          generation = uint64_t{0}]() mutable -> std::shared_ptr<SSL_CTX> {
    const std::shared_ptr<const TlsMaterial> material = credentials->current();
    if (generation == material->generation) return context;
    Result<SslContext> made = MakeHttpsContext(*material, job_id);
    if (!made.ok()) LogError("https_refused", {{"reason", Message(made.status())}});
    generation = material->generation;
    if (made.ok()) context = std::move(*made);
    return context;
  };
}

}  // namespace dws
