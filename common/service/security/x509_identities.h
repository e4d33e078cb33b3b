// The names in a certificate, for those who have it as an OpenSSL object.
#pragma once

#include <openssl/x509.h>

#include <string>
#include <vector>

namespace dws {

// The URIs among the subject alternative names, as they stand, at most limits::kPeerIdentitiesMax;
// those with a zero byte are left out.
std::vector<std::string> UriNames(const X509* certificate);

}  // namespace dws
