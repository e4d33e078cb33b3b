#include "common/service/security/x509_identities.h"

#include <openssl/x509v3.h>

#include "common/model/limits.h"

namespace dws {

std::vector<std::string> UriNames(const X509* certificate) {
  std::vector<std::string> uris;
  auto* const names = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(names) && uris.size() < limits::kPeerIdentitiesMax; ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names, i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* const uri = name->d.uniformResourceIdentifier;
    std::string text(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                     static_cast<size_t>(ASN1_STRING_length(uri)));
    // A zero byte would let C code read a shorter name than the CA signed.
    if (text.find('\0') == std::string::npos) uris.push_back(std::move(text));
  }
  GENERAL_NAMES_free(names);
  return uris;
}

}  // namespace dws
