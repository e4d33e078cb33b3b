// Calls that can fail only for lack of memory are CHECKed. Calls that can fail because of the
// caller's values return an error.
#include "common/service/security/x509_signing.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <chrono>
#include <ctime>
#include <memory>

#include "common/base/check.h"
#include "common/model/identity_limits.h"
#include "common/service/security/openssl_ptr.h"

namespace dws::x509 {
namespace {

using openssl::Certificate;
using openssl::Extension;

constexpr size_t kCommonNameBytesMax = 64;  // X.520's upper bound
constexpr int kSerialBits = 159;            // positive, in the 20 bytes that RFC 5280 allows
constexpr size_t kLoopbackHosts = 3;

template <typename Write>
std::string ToPem(const Write& write) {
  const openssl::Bio bio(BIO_new(BIO_s_mem()));
  DWS_CHECK(bio != nullptr && write(bio.get()) == 1);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

// `value` must be a constant of this file, because OpenSSL parses it as configuration text.
void AddExtension(X509* certificate, X509* issuer, int nid, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value));
  DWS_CHECK(extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1);
}

void AddName(GENERAL_NAMES* names, int type, const void* bytes, size_t size) {
  GENERAL_NAME* const name = GENERAL_NAME_new();
  ASN1_STRING* const value =
      type == GEN_IPADD ? static_cast<ASN1_STRING*>(ASN1_OCTET_STRING_new()) : ASN1_IA5STRING_new();
  DWS_CHECK(name != nullptr && value != nullptr &&
            ASN1_STRING_set(value, bytes, static_cast<int>(size)) == 1);
  GENERAL_NAME_set0_value(name, type, value);
  DWS_CHECK(sk_GENERAL_NAME_push(names, name) > 0);
}

void AddNames(X509* certificate, const SubjectNames& subject) {
  const openssl::Names names(sk_GENERAL_NAME_new_null());
  for (const std::string& uri : subject.uris) AddName(names.get(), GEN_URI, uri.data(), uri.size());
  for (const std::string& host : subject.hosts) {
    unsigned char address[16];
    if (::inet_pton(AF_INET, host.c_str(), address) == 1) {
      AddName(names.get(), GEN_IPADD, address, 4);
    } else if (::inet_pton(AF_INET6, host.c_str(), address) == 1) {
      AddName(names.get(), GEN_IPADD, address, 16);
    } else {
      AddName(names.get(), GEN_DNS, host.data(), host.size());
    }
  }
  DWS_CHECK(X509_add1_ext_i2d(certificate, NID_subject_alt_name, names.get(), /*crit=*/0,
                              X509V3_ADD_DEFAULT) == 1);
}

// Everything except extensions and signature. A null `issuer` means self-signed.
Certificate Begin(X509* issuer, EVP_PKEY* key, const std::string& title, const Validity& validity) {
  Certificate certificate(X509_new());
  DWS_CHECK(certificate != nullptr && X509_set_version(certificate.get(), X509_VERSION_3) == 1);
  const openssl::Number serial(BN_new());
  DWS_CHECK(serial != nullptr &&
            BN_rand(serial.get(), kSerialBits, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1 &&
            BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(certificate.get())) != nullptr);
  ASN1_TIME_set(X509_getm_notBefore(certificate.get()),
                static_cast<std::time_t>(validity.begin_unix_seconds));
  ASN1_TIME_set(X509_getm_notAfter(certificate.get()),
                static_cast<std::time_t>(validity.end_unix_seconds));
  X509_set_pubkey(certificate.get(), key);
  const std::string name = title.substr(0, kCommonNameBytesMax);
  DWS_CHECK(X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                                       reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1,
                                       0) == 1);
  X509_set_issuer_name(certificate.get(),
                       X509_get_subject_name(issuer == nullptr ? certificate.get() : issuer));
  return certificate;
}

Result<std::string> End(const Certificate& certificate, EVP_PKEY* key) {
  if (X509_sign(certificate.get(), key, EVP_sha256()) <= 0) {
    return InternalError("OpenSSL cannot sign the certificate: {}", openssl::Reason());
  }
  return ToPem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate.get()); });
}

}  // namespace

Validity ValidFor(int days, UnixTime now) {
  const auto seconds = [](UnixTime time) {
    return std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count();
  };
  return {.begin_unix_seconds = seconds(now - limits::kCertificateSkew),
          .end_unix_seconds = seconds(now + std::chrono::hours(24) * days)};
}

Result<std::string> SignAuthority(EVP_PKEY* key, const std::string& title, const std::string& uri,
                                  const Validity& validity) {
  const Certificate certificate = Begin(nullptr, key, title, validity);
  X509* const own = certificate.get();
  AddExtension(own, own, NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  AddExtension(own, own, NID_key_usage, "critical,keyCertSign,cRLSign");
  AddExtension(own, own, NID_subject_key_identifier, "hash");
  AddExtension(own, own, NID_authority_key_identifier, "keyid:always");
  AddNames(own, {.uris = {uri}, .hosts = {}});
  return End(certificate, key);
}

Result<std::string> SignLeaf(const Issuer& issuer, EVP_PKEY* key, const std::string& title,
                             const SubjectNames& names, const Validity& validity, Usage usage) {
  const Certificate certificate = Begin(issuer.issuer, key, title, validity);
  X509* const own = certificate.get();
  AddExtension(own, issuer.issuer, NID_basic_constraints, "critical,CA:FALSE");
  AddExtension(own, issuer.issuer, NID_key_usage, "critical,digitalSignature");
  AddExtension(own, issuer.issuer, NID_ext_key_usage,
               usage == Usage::kClient ? "clientAuth" : "serverAuth,clientAuth");
  AddExtension(own, issuer.issuer, NID_subject_key_identifier, "hash");
  AddExtension(own, issuer.issuer, NID_authority_key_identifier, "keyid:always");
  AddNames(own, names);
  return End(certificate, issuer.issuer_key);
}

std::string KeyPem(EVP_PKEY* key) {
  return ToPem([key](BIO* bio) {
    return PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
  });
}

std::vector<std::string> HostNames(const X509* certificate) {
  std::vector<std::string> hosts;
  const openssl::Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()) &&
                  hosts.size() < limits::kCertificateHostsMax + kLoopbackHosts;
       ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_DNS && name->type != GEN_IPADD) continue;
    const ASN1_STRING* const value = name->type == GEN_DNS
                                         ? static_cast<const ASN1_STRING*>(name->d.dNSName)
                                         : name->d.iPAddress;
    const unsigned char* const bytes = ASN1_STRING_get0_data(value);
    const int size = ASN1_STRING_length(value);
    if (name->type == GEN_DNS) {
      hosts.emplace_back(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
    } else if (size == 4 || size == 16) {
      char text[INET6_ADDRSTRLEN] = {};
      ::inet_ntop(size == 4 ? AF_INET : AF_INET6, bytes, text, sizeof(text));
      hosts.emplace_back(text);
    }
  }
  return hosts;
}

int64_t EndOf(const X509* certificate) {
  std::tm parts = {};
  return ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &parts) == 1
             ? static_cast<int64_t>(::timegm(&parts))
             : 0;
}

std::string ToDate(int64_t unix_seconds) {
  const auto time = static_cast<std::time_t>(unix_seconds);
  std::tm parts = {};
  ::gmtime_r(&time, &parts);
  char text[32];
  return std::string(text, std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &parts));
}

}  // namespace dws::x509
