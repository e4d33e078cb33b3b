// Makes the certificates of mutual TLS (deploy/SECURITY.md): an authority for one job, and
// certificates with the identities of identity.h. EC P-256 and SHA-256. It does not read or write
// files; dwsctl does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/wall_clock.h"
#include "common/service/security/identity.h"

namespace dws {

// A certificate and its private key.
struct CertificatePem {
  std::string cert_pem;
  std::string key_pem;  // empty: not available
};

// The contents of a certificate, for messages and for renewing it.
struct CertificateFacts {
  std::vector<Identity> identities;
  std::vector<std::string> hosts;  // DNS names and addresses, as in the arguments of a command
  int64_t ends_unix_seconds = 0;
};

// A self-signed certificate that may sign leaf certificates but no other authority, valid for
// `days` (1 to limits::kAuthorityDaysMax). It names the job, and IssueCertificate signs for no
// other job with it. INVALID_ARGUMENT: the job id or the days.
Result<CertificatePem> MakeAuthority(const std::string& job_id, int days, UnixTime now);

// The job that an authority signs for. FAILED_PRECONDITION: no certificate in PEM, or not one made
// by MakeAuthority.
Result<std::string> JobOfAuthority(const std::string& authority_pem);

// Makes a new key and a certificate for it. `hosts` are the names and addresses that others dial,
// at most limits::kCertificateHostsMax; localhost and the loopback addresses are added. An
// operator's certificate is valid for clients only. INVALID_ARGUMENT: the identity (also if it is
// of another job), a host, or the days (1 to limits::kCertificateDaysMax). FAILED_PRECONDITION:
// `authority` is not an authority, its key does not match, or it expires before the certificate
// would.
Result<CertificatePem> IssueCertificate(const CertificatePem& authority, const Identity& identity,
                                        const std::vector<std::string>& hosts, int days,
                                        UnixTime now);

// Signs the same identities, hosts and key again, even if the certificate has expired. The private
// key is not needed. Errors as IssueCertificate; also FAILED_PRECONDITION: this authority did not
// sign `cert_pem`.
Result<std::string> RenewCertificate(const CertificatePem& authority, const std::string& cert_pem,
                                     int days, UnixTime now);

// FAILED_PRECONDITION: not a certificate in PEM, or an identity that cannot be parsed.
Result<CertificateFacts> ReadCertificate(const std::string& cert_pem);

// INVALID_ARGUMENT, quoting `host`, unless it is an address or a DNS name, which may begin with
// "*.".
Status CheckHost(const std::string& host);

}  // namespace dws
