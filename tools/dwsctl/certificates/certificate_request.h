// What the command line of `dwsctl certificates` asks for, as identities and hosts. Pure.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/service/security/identity.h"

namespace dws::dwsctl {

struct CertificateRequest {
  Identity identity;
  std::vector<std::string> hosts;
};

// "publish", "receive" or "operate". INVALID_ARGUMENT: another.
Result<Role> RoleNamed(const std::string& text);

// INVALID_ARGUMENT: of the role publish, and no rank in decimal below limits::kWorldSizeMax.
Status CheckName(Role role, const std::string& name);

// INVALID_ARGUMENT: there are more than limits::kCertificatesMax, or two for one identity, named.
Status CheckRequests(const std::vector<CertificateRequest>& requests);

// NAME, or NAME@HOST,HOST,...; of the role publish also ranks FIRST-LAST, one request each. `hosts`
// are added to each. INVALID_ARGUMENT, quoting `text`: no name, a host that is none, ranks that are
// none or more than limits::kWorldSizeMax.
Result<std::vector<CertificateRequest>> ParseRequest(const std::string& job_id, Role role,
                                                     const std::string& text,
                                                     const std::vector<std::string>& hosts);

}  // namespace dws::dwsctl
