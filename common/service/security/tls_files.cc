#include "common/service/security/tls_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/file_system.h"
#include "common/model/limits.h"
#include "common/service/security/x509_identities.h"

namespace dws {
namespace {

template <auto free_function>
struct Deleter {
  template <typename T>
  void operator()(T* object) const {
    free_function(object);
  }
};
using Bio = std::unique_ptr<BIO, Deleter<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Deleter<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;
using Store = std::unique_ptr<X509_STORE, Deleter<X509_STORE_free>>;
using Verification = std::unique_ptr<X509_STORE_CTX, Deleter<X509_STORE_CTX_free>>;

// Reads `pem`, which outlives it.
Bio Open(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

// A passphrase callback for PEM functions that never asks on the terminal.
int NoPassphrase(char*, int, int, void*) { return 0; }

// OpenSSL's last error of this thread. Clears the thread's queue of errors: one that is left in it
// is reported to the next caller.
std::string Reason() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* const reason = ERR_reason_error_string(code);
  return reason == nullptr ? "OpenSSL gives no reason" : reason;
}

// The security level that OpenSSL requires of both ends of a connection on Debian: keys and
// signatures of at least 112 bits. Without the check a weaker certificate would be accepted here
// and then fail every handshake.
constexpr int kSecurityLevel = 2;

Result<std::vector<Certificate>> ParseCertificates(const std::string& path,
                                                   const std::string& pem) {
  ERR_clear_error();
  const Bio bio = Open(pem);
  std::vector<Certificate> certificates;
  while (X509* const parsed = PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr)) {
    certificates.emplace_back(parsed);
  }
  // OpenSSL reports the end of the file as a missing start line.
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const std::string reason = Reason();
  if (certificates.empty() || !at_end) {
    return FailedPreconditionError("{}: expected certificates in PEM, found {} and then: {}", path,
                                   certificates.size(), reason);
  }
  return certificates;
}

Result<Key> ParseKey(const std::string& path, const std::string& pem) {
  ERR_clear_error();
  Key key(PEM_read_bio_PrivateKey(Open(pem).get(), nullptr, NoPassphrase, nullptr));
  if (key == nullptr) {
    return FailedPreconditionError("{}: expected a private key in PEM without a passphrase: {}",
                                   path, Reason());
  }
  return key;
}

int64_t UnixSeconds(const ASN1_TIME* time) {
  std::tm parts = {};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? static_cast<int64_t>(::timegm(&parts)) : 0;
}

// "2026-01-31 12:00:00 UTC".
std::string ToDate(int64_t unix_seconds) {
  const auto time = static_cast<std::time_t>(unix_seconds);
  std::tm parts = {};
  ::gmtime_r(&time, &parts);
  char text[32];
  return std::string(text, std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &parts));
}

Status CheckDates(const std::string& path, const X509* certificate, int64_t now) {
  const int64_t begin = UnixSeconds(X509_get0_notBefore(certificate));
  const int64_t end = UnixSeconds(X509_get0_notAfter(certificate));
  if (now < begin) {
    return FailedPreconditionError(
        "{}: the certificate is not valid before {}, it is {} now; is the clock right?", path,
        ToDate(begin), ToDate(now));
  }
  if (now >= end) {
    return FailedPreconditionError("{}: the certificate expired at {}, it is {} now; renew it",
                                   path, ToDate(end), ToDate(now));
  }
  return OkStatus();
}

// `chain` is the daemon's certificate, then the intermediate ones up to a CA.
Status CheckSignature(const TlsFiles& files, const std::vector<Certificate>& authorities,
                      const std::vector<Certificate>& chain, int64_t now) {
  const Store store(X509_STORE_new());
  for (const Certificate& authority : authorities)
    X509_STORE_add_cert(store.get(), authority.get());
  STACK_OF(X509)* const between = sk_X509_new_null();
  for (size_t i = 1; i < chain.size(); ++i) sk_X509_push(between, chain[i].get());
  const Verification verification(X509_STORE_CTX_new());
  X509_STORE_CTX_init(verification.get(), store.get(), chain.front().get(), between);
  X509_VERIFY_PARAM_set_time(X509_STORE_CTX_get0_param(verification.get()),
                             static_cast<std::time_t>(now));
  X509_VERIFY_PARAM_set_auth_level(X509_STORE_CTX_get0_param(verification.get()), kSecurityLevel);
  const int verified = X509_verify_cert(verification.get());
  const int error = X509_STORE_CTX_get_error(verification.get());
  sk_X509_free(between);
  ERR_clear_error();
  if (verified == 1) return OkStatus();
  if (error == X509_V_ERR_EE_KEY_TOO_SMALL || error == X509_V_ERR_CA_KEY_TOO_SMALL ||
      error == X509_V_ERR_CA_MD_TOO_WEAK) {
    return FailedPreconditionError(
        "{}: no connection would take the certificate: {}; issue it again, with keys of 2048 bits "
        "(RSA) or 256 (EC) and SHA-256",
        files.cert, X509_verify_cert_error_string(error));
  }
  return FailedPreconditionError(
      "{}: the certificate is not signed by a CA in {}: {}; give the CA's certificate, and those "
      "between",
      files.cert, files.ca, X509_verify_cert_error_string(error));
}

Result<std::string> ReadFlagFile(FileSystem& file_system, std::string_view flag,
                                 const std::string& path) {
  // Opening a pipe would wait for its writer, possibly for ever, and block a stop.
  struct stat found = {};
  if (::stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
    return FailedPreconditionError("{}: expected a file, {} is something else", flag, path);
  }
  const auto bytes = file_system.ReadFile(path, limits::kTlsFileBytesMax);
  if (!bytes.ok()) return Annotate(bytes.status(), flag);
  return std::string(AsText(*bytes));
}

}  // namespace

std::string TlsMaterial::identity() const {
  return identities.empty() ? std::string() : ToUri(identities.front());
}

Status CheckTlsFiles(const TlsFiles& files) {
  if (!files.given() || (!files.ca.empty() && !files.cert.empty() && !files.key.empty())) {
    return OkStatus();
  }
  std::string missing;
  for (const auto& [flag, path] :
       {std::pair("--tls-ca", &files.ca), std::pair("--tls-cert", &files.cert),
        std::pair("--tls-key", &files.key)}) {
    if (path->empty()) missing += fmt::format("{}{}", missing.empty() ? "" : " and ", flag);
  }
  return InvalidArgumentError("--tls-ca, --tls-cert and --tls-key belong together: {} missing",
                              missing);
}

Result<TlsMaterial> ReadTlsFiles(const TlsFiles& files) {
  DWS_RETURN_IF_ERROR(CheckTlsFiles(files));
  PosixFileSystem file_system;
  TlsMaterial material;
  DWS_ASSIGN_OR_RETURN(material.ca_pem, ReadFlagFile(file_system, "--tls-ca", files.ca));
  DWS_ASSIGN_OR_RETURN(material.cert_pem, ReadFlagFile(file_system, "--tls-cert", files.cert));
  DWS_ASSIGN_OR_RETURN(material.key_pem, ReadFlagFile(file_system, "--tls-key", files.key));
  return material;
}

Status CheckTlsMaterial(const TlsFiles& files, std::span<const Identity> required,
                        int64_t unix_seconds, TlsMaterial& material) {
  DWS_ASSIGN_OR_RETURN(const auto authorities, ParseCertificates(files.ca, material.ca_pem));
  DWS_ASSIGN_OR_RETURN(const auto chain, ParseCertificates(files.cert, material.cert_pem));
  DWS_ASSIGN_OR_RETURN(const Key key, ParseKey(files.key, material.key_pem));
  X509* const own = chain.front().get();
  if (X509_check_private_key(own, key.get()) != 1) {
    ERR_clear_error();
    return FailedPreconditionError("{}: the key is not that of the certificate in {}", files.key,
                                   files.cert);
  }
  DWS_RETURN_IF_ERROR(CheckDates(files.cert, own, unix_seconds));
  DWS_RETURN_IF_ERROR(CheckSignature(files, authorities, chain, unix_seconds));
  material.expires_unix_seconds = UnixSeconds(X509_get0_notAfter(own));
  material.identities.clear();
  for (const std::string& uri : UriNames(own)) {
    if (!IsIdentityUri(uri)) continue;
    Result<Identity> identity = ParseIdentity(uri);
    if (!identity.ok()) {
      return FailedPreconditionError("{}: {}", files.cert, Message(identity.status()));
    }
    material.identities.push_back(*std::move(identity));
  }
  const auto& has = material.identities;
  for (const Identity& identity : required) {
    if (std::find(has.begin(), has.end(), identity) != has.end()) continue;
    return FailedPreconditionError(
        "{}: the certificate must have the URI {} among its subject alternative names, found {}",
        files.cert, ToUri(identity), has.empty() ? "no dws:// URI" : material.identity());
  }
  return OkStatus();
}

}  // namespace dws
