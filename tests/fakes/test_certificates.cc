#include "tests/fakes/test_certificates.h"

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <catch2/catch.hpp>

namespace dws {
namespace {

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;

template <typename Write>
std::string ToPem(Write write) {
  const std::unique_ptr<BIO, decltype(&BIO_free_all)> bio(BIO_new(BIO_s_mem()), &BIO_free_all);
  REQUIRE(write(bio.get()) == 1);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

std::string CertificatePem(X509* certificate) {
  return ToPem([certificate](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}

std::string KeyPem(EVP_PKEY* key) {
  return ToPem([key](BIO* bio) {
    return PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
  });
}

void AddExtension(X509* certificate, int nid, const std::string& value) {
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value.c_str());
  REQUIRE(extension != nullptr);
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

Certificate Make(EVP_PKEY* key, const std::string& name, X509* issuer, int64_t begins_in_seconds,
                 int64_t ends_in_seconds) {
  Certificate certificate(X509_new(), &X509_free);
  X509_set_version(certificate.get(), 2);
  static long serial = 0;
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), ++serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), begins_in_seconds);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), ends_in_seconds);
  X509_set_pubkey(certificate.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(certificate.get(),
                       X509_get_subject_name(issuer == nullptr ? certificate.get() : issuer));
  return certificate;
}

Key MakeKey() { return Key(EVP_EC_gen("P-256"), &EVP_PKEY_free); }

}  // namespace

struct TestAuthority::Parts {
  Key key = MakeKey();
  Certificate certificate{nullptr, &X509_free};
  std::string pem;
};

TestAuthority::TestAuthority(const std::string& name) : parts_(std::make_unique<Parts>()) {
  parts_->certificate = Make(parts_->key.get(), name, nullptr, -365 * 86400L, 365 * 86400L);
  AddExtension(parts_->certificate.get(), NID_basic_constraints, "critical,CA:TRUE");
  REQUIRE(X509_sign(parts_->certificate.get(), parts_->key.get(), EVP_sha256()) > 0);
  parts_->pem = CertificatePem(parts_->certificate.get());
}

TestAuthority::~TestAuthority() = default;

const std::string& TestAuthority::pem() const { return parts_->pem; }

TestPair TestAuthority::Issue(const Wish& wish) const {
  const Key key = wish.weak ? Key(EVP_RSA_gen(1024), &EVP_PKEY_free) : MakeKey();
  const Certificate certificate = Make(key.get(), "leaf", parts_->certificate.get(),
                                       wish.begins_in_seconds, wish.ends_in_seconds);
  std::string names;
  for (const std::string& name : wish.names) names += (names.empty() ? "" : ",") + name;
  if (!names.empty()) AddExtension(certificate.get(), NID_subject_alt_name, names);
  REQUIRE(X509_sign(certificate.get(), parts_->key.get(), EVP_sha256()) > 0);
  return {.cert_pem = CertificatePem(certificate.get()), .key_pem = KeyPem(key.get())};
}

std::string EncryptedKey(const TestPair& pair) {
  const std::unique_ptr<BIO, decltype(&BIO_free_all)> bio(
      BIO_new_mem_buf(pair.key_pem.data(), static_cast<int>(pair.key_pem.size())), &BIO_free_all);
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr), &EVP_PKEY_free);
  return ToPem([&key](BIO* out) {
    std::string passphrase = "secret";
    return PEM_write_bio_PrivateKey(out, key.get(), EVP_aes_128_cbc(),
                                    reinterpret_cast<unsigned char*>(passphrase.data()),
                                    static_cast<int>(passphrase.size()), nullptr, nullptr);
  });
}

}  // namespace dws
