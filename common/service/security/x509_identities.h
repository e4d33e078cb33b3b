// The names in a certificate that is already an OpenSSL object.
#pragma once

#include <openssl/x509.h>

#include <string>
#include <vector>

namespace dws {

// The URIs among the subject alternative names, unchanged, at most limits::kPeerIdentitiesMax.
// Those with a zero byte are left out.
std::vector<std::string> UriNames(const X509* certificate);

}  // namespace dws
