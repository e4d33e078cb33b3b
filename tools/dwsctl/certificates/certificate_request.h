// Parses the requests on the command line of `dwsctl certificates` into identities and hosts. Pure.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/service/security/identity.h"

namespace dws::dwsctl {

// One certificate to issue.
struct CertificateRequest {
  Identity identity;
  std::vector<std::string> hosts;
};

// "publish", "receive" or "operate". INVALID_ARGUMENT: any other text.
Result<Role> RoleNamed(const std::string& text);

// INVALID_ARGUMENT: for role publish, `name` is not a decimal rank below limits::kWorldSizeMax.
Status CheckName(Role role, const std::string& name);

// INVALID_ARGUMENT: there are more than limits::kCertificatesMax, or two for the same identity,
// which the message names.
Status CheckRequests(const std::vector<CertificateRequest>& requests);

// NAME, or NAME@HOST,HOST,...; for role publish also ranks FIRST-LAST, which give one request each.
// `hosts` are added to each request. INVALID_ARGUMENT, quoting `text`: no name, an invalid host,
// invalid ranks, or more ranks than limits::kWorldSizeMax.
Result<std::vector<CertificateRequest>> ParseRequest(const std::string& job_id, Role role,
                                                     const std::string& text,
                                                     const std::vector<std::string>& hosts);

}  // namespace dws::dwsctl
