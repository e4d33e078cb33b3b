// Extensions are built from values and never from OpenSSL's configuration text, so that one name
// cannot inject another.
#include "common/service/security/certificate_maker.h"

#include <arpa/inet.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <utility>

#include "common/base/check.h"
#include "common/model/identity_limits.h"
#include "common/service/security/openssl_ptr.h"
#include "common/service/security/x509_identities.h"
#include "common/service/security/x509_signing.h"

namespace dws {
namespace {

using openssl::Certificate;
using openssl::Key;

constexpr std::string_view kJobScheme = "dws-job:";  // not an identity: an authority has none
constexpr std::string_view kScheme = "dws://";
const std::array<std::string, 3> kLoopback = {"localhost", "127.0.0.1", "::1"};

// A job's id, escaped as in identities.
std::string EscapedJob(const std::string& job_id) {
  const std::string uri = ToUri(SenderIdentity(job_id, 0));
  return uri.substr(kScheme.size(), uri.find('/', kScheme.size()) - kScheme.size());
}

Status CheckDays(int days, int days_max) {
  if (days >= 1 && days <= days_max) return OkStatus();
  return InvalidArgumentError("expected 1 to {} days, found {}", days_max, days);
}

// INVALID_ARGUMENT: daemons would not accept this identity.
Status CheckIdentity(const Identity& identity) {
  const Result<Identity> parsed = ParseIdentity(ToUri(identity));
  if (!parsed.ok()) return parsed.status();
  if (*parsed == identity) return OkStatus();
  return InvalidArgumentError("the rank is {}, expected it as {}", identity.name, parsed->name);
}

std::vector<std::string> WithLoopback(std::vector<std::string> hosts) {
  for (const std::string& host : kLoopback) {
    if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
  }
  return hosts;
}

Result<Certificate> ParseOne(const std::string& pem, std::string_view what) {
  ERR_clear_error();
  Certificate certificate(
      PEM_read_bio_X509(openssl::Open(pem).get(), nullptr, openssl::NoPassphrase, nullptr));
  if (certificate != nullptr) return certificate;
  return FailedPreconditionError("{}: expected a certificate in PEM: {}", what, openssl::Reason());
}

struct Signer {
  Certificate certificate;
  Key key;
  std::string job_id;
};

Result<std::string> JobOf(const X509* authority) {
  for (const std::string& uri : UriNames(authority)) {
    if (!uri.starts_with(kJobScheme)) continue;
    DWS_ASSIGN_OR_RETURN(
        const Identity identity,
        ParseIdentity(fmt::format("{}{}/publish/0", kScheme, uri.substr(kJobScheme.size()))));
    return identity.job_id;
  }
  return FailedPreconditionError(
      "the authority's certificate names no job: expected one that `dwsctl certificates authority` "
      "made");
}

Result<Signer> ReadSigner(const CertificatePem& pem) {
  Signer signer;
  DWS_ASSIGN_OR_RETURN(signer.certificate, ParseOne(pem.cert_pem, "the authority"));
  DWS_ASSIGN_OR_RETURN(signer.job_id, JobOf(signer.certificate.get()));
  signer.key.reset(PEM_read_bio_PrivateKey(openssl::Open(pem.key_pem).get(), nullptr,
                                           openssl::NoPassphrase, nullptr));
  if (signer.key == nullptr) {
    return FailedPreconditionError(
        "the authority's key: expected a private key in PEM without a passphrase: {}",
        openssl::Reason());
  }
  if (X509_check_private_key(signer.certificate.get(), signer.key.get()) != 1) {
    ERR_clear_error();
    return FailedPreconditionError("the authority's key is not that of its certificate");
  }
  return signer;
}

// Signs `key` for the identities. A public key is enough.
Result<std::string> Sign(const Signer& signer, EVP_PKEY* key,
                         const std::vector<Identity>& identities,
                         const std::vector<std::string>& hosts, int days, UnixTime now) {
  DWS_RETURN_IF_ERROR(CheckDays(days, limits::kCertificateDaysMax));
  bool serves = false;
  x509::SubjectNames names{.uris = {}, .hosts = hosts};
  for (const Identity& identity : identities) {
    DWS_RETURN_IF_ERROR(CheckIdentity(identity));
    if (identity.job_id != signer.job_id) {
      return InvalidArgumentError("the authority signs for job '{}', not for job '{}'",
                                  signer.job_id, identity.job_id);
    }
    names.uris.push_back(ToUri(identity));
    serves = serves || identity.role != Role::kOperate;
  }
  const x509::Validity validity = x509::ValidFor(days, now);
  const int64_t authority_ends = x509::EndOf(signer.certificate.get());
  if (validity.end_unix_seconds > authority_ends) {
    return FailedPreconditionError(
        "a certificate of {} days would outlive its authority, which ends at {}: give fewer "
        "--days, "
        "or make a new authority",
        days, x509::ToDate(authority_ends));
  }
  const std::string& uri = names.uris.front();
  return x509::SignLeaf({.issuer = signer.certificate.get(), .issuer_key = signer.key.get()}, key,
                        uri.substr(uri.find('/', kScheme.size()) + 1), names, validity,
                        serves ? x509::Usage::kServerAndClient : x509::Usage::kClient);
}

}  // namespace

Status CheckHost(const std::string& host) {
  unsigned char address[16];
  const bool whole = host.find('\0') == std::string::npos;
  if (whole && (::inet_pton(AF_INET, host.c_str(), address) == 1 ||
                ::inet_pton(AF_INET6, host.c_str(), address) == 1)) {
    return OkStatus();
  }
  constexpr size_t kNameMax = 253;
  constexpr size_t kLabelMax = 63;
  const std::string_view all = host;
  std::string_view rest = all.starts_with("*.") ? all.substr(2) : all;
  bool sound = !rest.empty() && all.size() <= kNameMax;
  bool digits = true;  // if the last label has only digits, `host` is a bad address and not a name
  while (sound) {
    const std::string_view label = rest.substr(0, rest.find('.'));
    const auto is_in_names = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '-' || c == '_';
    };
    sound = !label.empty() && label.size() <= kLabelMax && label.front() != '-' &&
            label.back() != '-' && std::all_of(label.begin(), label.end(), is_in_names);
    digits = std::all_of(label.begin(), label.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (label.size() == rest.size()) break;
    rest.remove_prefix(label.size() + 1);
    sound = sound && !rest.empty();
  }
  if (sound && !digits) return OkStatus();
  return InvalidArgumentError("'{}' is not a host: expected a DNS name or an IP address",
                              all.substr(0, kNameMax));
}

Result<CertificatePem> MakeAuthority(const std::string& job_id, int days, UnixTime now) {
  DWS_RETURN_IF_ERROR(CheckDays(days, limits::kAuthorityDaysMax));
  DWS_RETURN_IF_ERROR(CheckIdentity(SenderIdentity(job_id, 0)));
  const Key key(EVP_EC_gen("P-256"));
  DWS_CHECK(key != nullptr);
  const std::string job = EscapedJob(job_id);
  DWS_ASSIGN_OR_RETURN(
      std::string cert_pem,
      x509::SignAuthority(key.get(), "DWS authority of " + job,
                          fmt::format("{}{}", kJobScheme, job), x509::ValidFor(days, now)));
  return CertificatePem{.cert_pem = std::move(cert_pem), .key_pem = x509::KeyPem(key.get())};
}

Result<std::string> JobOfAuthority(const std::string& authority_pem) {
  DWS_ASSIGN_OR_RETURN(const Certificate certificate, ParseOne(authority_pem, "the authority"));
  return JobOf(certificate.get());
}

Result<CertificatePem> IssueCertificate(const CertificatePem& authority, const Identity& identity,
                                        const std::vector<std::string>& hosts, int days,
                                        UnixTime now) {
  if (hosts.size() > limits::kCertificateHostsMax) {
    return InvalidArgumentError("{} hosts, expected at most {}", hosts.size(),
                                limits::kCertificateHostsMax);
  }
  for (const std::string& host : hosts) DWS_RETURN_IF_ERROR(CheckHost(host));
  DWS_ASSIGN_OR_RETURN(const Signer signer, ReadSigner(authority));
  const Key key(EVP_EC_gen("P-256"));
  DWS_CHECK(key != nullptr);
  DWS_ASSIGN_OR_RETURN(std::string cert_pem,
                       Sign(signer, key.get(), {identity}, WithLoopback(hosts), days, now));
  return CertificatePem{.cert_pem = std::move(cert_pem), .key_pem = x509::KeyPem(key.get())};
}

Result<std::string> RenewCertificate(const CertificatePem& authority, const std::string& cert_pem,
                                     int days, UnixTime now) {
  DWS_ASSIGN_OR_RETURN(const Signer signer, ReadSigner(authority));
  DWS_ASSIGN_OR_RETURN(const Certificate certificate, ParseOne(cert_pem, "the certificate"));
  EVP_PKEY* const signed_by = X509_get0_pubkey(signer.certificate.get());
  const bool ours = X509_verify(certificate.get(), signed_by) == 1;
  ERR_clear_error();
  if (!ours) {
    return FailedPreconditionError(
        "the certificate is not signed by this authority: expected one that it issued; issue a new "
        "one");
  }
  DWS_ASSIGN_OR_RETURN(const CertificateFacts facts, ReadCertificate(cert_pem));
  if (facts.identities.empty()) {
    return FailedPreconditionError("the certificate has no dws:// identity: issue a new one");
  }
  return Sign(signer, X509_get0_pubkey(certificate.get()), facts.identities, facts.hosts, days,
              now);
}

Result<CertificateFacts> ReadCertificate(const std::string& cert_pem) {
  DWS_ASSIGN_OR_RETURN(const Certificate certificate, ParseOne(cert_pem, "the certificate"));
  CertificateFacts facts{.identities = {},
                         .hosts = x509::HostNames(certificate.get()),
                         .ends_unix_seconds = x509::EndOf(certificate.get())};
  for (const std::string& uri : UriNames(certificate.get())) {
    if (!IsIdentityUri(uri)) continue;
    Result<Identity> identity = ParseIdentity(uri);
    if (!identity.ok()) return FailedPreconditionError("{}", Message(identity.status()));
    facts.identities.push_back(*std::move(identity));
  }
  return facts;
}

}  // namespace dws
