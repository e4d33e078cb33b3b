// Builds X.509 certificates field by field. certificate_maker.h decides on the contents.
#pragma once

#include <openssl/x509.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/wall_clock.h"

namespace dws::x509 {

// The subject alternative names of a certificate.
struct SubjectNames {
  std::vector<std::string> uris;
  std::vector<std::string> hosts;  // DNS names and addresses
};

struct Validity {
  int64_t begin_unix_seconds = 0;
  int64_t end_unix_seconds = 0;
};
// Begins limits::kCertificateSkew before `now`, for clocks that are behind.
Validity ValidFor(int days, UnixTime now);

enum class Usage { kServerAndClient, kClient };

// Who signs. Pointers are not owned.
struct Issuer {
  X509* issuer = nullptr;
  EVP_PKEY* issuer_key = nullptr;
};

// Returns PEM. `title` is the subject's common name, shortened if it is too long. INTERNAL: OpenSSL
// refused.
Result<std::string> SignAuthority(EVP_PKEY* key, const std::string& title, const std::string& uri,
                                  const Validity& validity);
// `key` may be a public key.
Result<std::string> SignLeaf(const Issuer& issuer, EVP_PKEY* key, const std::string& title,
                             const SubjectNames& names, const Validity& validity, Usage usage);

std::string KeyPem(EVP_PKEY* key);
// DNS names and addresses among the subject alternative names, at most
// limits::kCertificateHostsMax plus the loopback names.
std::vector<std::string> HostNames(const X509* certificate);
// When it expires, in seconds since 1970.
int64_t EndOf(const X509* certificate);
// "2026-01-31 12:00:00 UTC".
std::string ToDate(int64_t unix_seconds);

}  // namespace dws::x509
