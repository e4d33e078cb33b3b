// Makes what mutual TLS needs (deploy/SECURITY.md): an authority for one job, and certificates with
// the identities of identity.h. EC P-256 and SHA-256. Nothing here touches files: dwsctl does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/wall_clock.h"
#include "common/service/security/identity.h"

namespace dws {

struct CertificatePem {
  std::string cert_pem;
  std::string key_pem;  // empty: not at hand
};

// What a certificate says, for messages and for renewing it.
struct CertificateFacts {
  std::vector<Identity> identities;
  std::vector<std::string> hosts;  // DNS names and addresses, as they are written in commands
  int64_t ends_unix_seconds = 0;
};

// A self-signed certificate that may sign others and nothing between, valid for `days` (1 to
// limits::kAuthorityDaysMax). It names the job, and signs for no other. INVALID_ARGUMENT: the job
// id or the days.
Result<CertificatePem> MakeAuthority(const std::string& job_id, int days, UnixTime now);

// The job it signs for. FAILED_PRECONDITION: no certificate in PEM, or not one of MakeAuthority.
Result<std::string> JobOfAuthority(const std::string& authority_pem);

// A certificate for a new key. `hosts`: names and addresses that others dial it by, limits::
// kCertificateHostsMax at most; localhost and the loopback addresses are added. An operator's is
// for clients only. INVALID_ARGUMENT: the identity (also of another job), a host, or the days (1 to
// limits:: kCertificateDaysMax). FAILED_PRECONDITION: what `authority` holds is none, its key is
// another's, or it ends before the certificate would.
Result<CertificatePem> IssueCertificate(const CertificatePem& authority, const Identity& identity,
                                        const std::vector<std::string>& hosts, int days,
                                        UnixTime now);

// The same identities, hosts and key, signed anew, whether it has ended or not; its private key is
// not needed. Errors as IssueCertificate; FAILED_PRECONDITION also: `cert_pem` is not of this
// authority.
Result<std::string> RenewCertificate(const CertificatePem& authority, const std::string& cert_pem,
                                     int days, UnixTime now);

// FAILED_PRECONDITION: not a certificate in PEM, or an identity that cannot be read.
Result<CertificateFacts> ReadCertificate(const std::string& cert_pem);

// INVALID_ARGUMENT, quoting it, unless `host` is a DNS name (perhaps with "*." in front) or an
// address.
Status CheckHost(const std::string& host);

}  // namespace dws
