#include "common/service/security/certificate_maker.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <string>

#include "common/model/limits.h"
#include "common/service/security/openssl_ptr.h"
#include "common/service/security/tls_files.h"
#include "tests/fakes/test_certificates.h"

namespace dws {
namespace {

constexpr UnixTime kNow{std::chrono::hours(24 * 365 * 56)};
constexpr int64_t kNowSeconds = int64_t{24} * 365 * 56 * 3600;
constexpr int64_t kDay = 86'400;
const Identity kReceiver = ReceiverIdentity("my job/1", "rollout 0");

CertificatePem Authority(const std::string& job = "my job/1", int days = 100) {
  auto authority = MakeAuthority(job, days, kNow);
  REQUIRE(authority.ok());
  return *std::move(authority);
}

// Checks the files as a daemon does that starts at that time.
Status Check(const CertificatePem& authority, const CertificatePem& own,
             const std::optional<Identity>& required, int64_t unix_seconds = kNowSeconds) {
  TlsMaterial material{.ca_pem = authority.cert_pem,
                       .cert_pem = own.cert_pem,
                       .key_pem = own.key_pem,
                       .identities = {}};
  return CheckTlsMaterial({.ca = "ca", .cert = "cert", .key = "key"}, required, unix_seconds,
                          material);
}

openssl::Certificate Parse(const std::string& pem) {
  return openssl::Certificate(
      PEM_read_bio_X509(openssl::Open(pem).get(), nullptr, nullptr, nullptr));
}

std::string Refused(const Status& status) {
  CHECK_FALSE(status.ok());
  return std::string(Message(status));
}

}  // namespace

TEST_CASE("a daemon accepts a certificate of each role only for its own identity",
          "[certificates]") {
  const CertificatePem authority = Authority();
  for (const Identity& identity :
       {SenderIdentity("my job/1", 17), kReceiver,
        Identity{.job_id = "my job/1", .role = Role::kOperate, .name = "ann"}}) {
    INFO(ToUri(identity));
    const auto made =
        IssueCertificate(authority, identity, {"engine0.example", "10.0.0.5"}, 90, kNow);
    REQUIRE(made.ok());
    CHECK(Check(authority, *made, identity).ok());
    CHECK(Check(authority, *made, SenderIdentity("my job/1", 1)).code() ==
          absl::StatusCode::kFailedPrecondition);
    CHECK(Check(Authority(), *made, identity).code() == absl::StatusCode::kFailedPrecondition);
  }
}

TEST_CASE("certificates have P-256 keys and SHA-256 signatures and the narrowest key usage",
          "[certificates]") {
  const CertificatePem authority = Authority();
  const auto ca = Parse(authority.cert_pem);
  CHECK(X509_check_ca(ca.get()) == 1);
  CHECK(X509_get_pathlen(ca.get()) == 0);
  CHECK(X509_get_key_usage(ca.get()) == (KU_KEY_CERT_SIGN | KU_CRL_SIGN));
  const auto daemon = IssueCertificate(authority, kReceiver, {}, 1, kNow);
  const auto person = IssueCertificate(
      authority, {.job_id = "my job/1", .role = Role::kOperate, .name = "ann"}, {}, 1, kNow);
  REQUIRE(daemon.ok());
  REQUIRE(person.ok());
  const auto served = Parse(daemon->cert_pem);
  CHECK(X509_check_ca(served.get()) == 0);
  CHECK(X509_get_key_usage(served.get()) == KU_DIGITAL_SIGNATURE);
  CHECK(X509_get_extended_key_usage(served.get()) == (XKU_SSL_SERVER | XKU_SSL_CLIENT));
  CHECK(X509_get_extended_key_usage(Parse(person->cert_pem).get()) == XKU_SSL_CLIENT);
  for (const std::string& pem : {authority.cert_pem, daemon->cert_pem}) {
    const auto certificate = Parse(pem);
    CHECK(X509_get_signature_nid(certificate.get()) == NID_ecdsa_with_SHA256);
    CHECK(EVP_PKEY_get_bits(X509_get0_pubkey(certificate.get())) == 256);
  }
  CHECK(ASN1_INTEGER_cmp(X509_get0_serialNumber(served.get()),
                         X509_get0_serialNumber(Parse(person->cert_pem).get())) != 0);
}

TEST_CASE("a certificate is valid for its hosts and loopback and no other host", "[certificates]") {
  const CertificatePem authority = Authority();
  const auto made = IssueCertificate(authority, kReceiver,
                                     {"*.rack.example", "10.0.0.5", "2001:db8::7"}, 90, kNow);
  REQUIRE(made.ok());
  const auto certificate = Parse(made->cert_pem);
  const auto names = [&](const std::string& host) {
    return X509_check_host(certificate.get(), host.data(), host.size(), 0, nullptr) == 1;
  };
  const auto is_at = [&](const char* address) {
    return X509_check_ip_asc(certificate.get(), address, 0) == 1;
  };
  CHECK(names("engine0.rack.example"));
  CHECK(names("localhost"));
  CHECK_FALSE(names("engine0.another.example"));
  CHECK(is_at("10.0.0.5"));
  CHECK(is_at("2001:db8::7"));
  CHECK(is_at("127.0.0.1"));
  CHECK(is_at("::1"));
  CHECK_FALSE(is_at("10.0.0.6"));
  const auto facts = ReadCertificate(made->cert_pem);
  REQUIRE(facts.ok());
  CHECK(facts->identities == std::vector<Identity>{kReceiver});
  CHECK(facts->hosts.size() == 6);
  CHECK(facts->ends_unix_seconds == kNowSeconds + 90 * kDay);
}

TEST_CASE("a certificate is valid from an hour before its creation to its last day",
          "[certificates]") {
  const CertificatePem authority = Authority();
  const auto made = IssueCertificate(authority, kReceiver, {}, 3, kNow);
  REQUIRE(made.ok());
  CHECK(Check(authority, *made, kReceiver, kNowSeconds - 3500).ok());
  CHECK(Check(authority, *made, kReceiver, kNowSeconds + 3 * kDay - 1).ok());
  CHECK_FALSE(Check(authority, *made, kReceiver, kNowSeconds - 3700).ok());
  CHECK_FALSE(Check(authority, *made, kReceiver, kNowSeconds + 3 * kDay).ok());
}

TEST_CASE("a renewed certificate keeps key and identity and hosts and has a new end",
          "[certificates]") {
  const CertificatePem authority = Authority();
  const auto made = IssueCertificate(authority, kReceiver, {"engine0.example"}, 10, kNow);
  REQUIRE(made.ok());
  const UnixTime later = kNow + std::chrono::hours(24) * 20;  // it has expired
  const auto renewed =
      RenewCertificate({authority.cert_pem, authority.key_pem}, made->cert_pem, 10, later);
  REQUIRE(renewed.ok());
  CHECK(Check(authority, {.cert_pem = *renewed, .key_pem = made->key_pem}, kReceiver,
              kNowSeconds + 29 * kDay)
            .ok());
  CHECK(ReadCertificate(*renewed)->hosts == ReadCertificate(made->cert_pem)->hosts);

  const CertificatePem other = Authority();
  CHECK_THAT(Refused(RenewCertificate(other, made->cert_pem, 10, kNow).status()),
             Catch::Contains("not signed by this authority"));
  // A certificate of the same authority without a dws:// identity.
  CHECK_THAT(Refused(RenewCertificate(authority, authority.cert_pem, 10, kNow).status()),
             Catch::Contains("no dws:// identity"));
}

TEST_CASE("a wrong job or name or host or lifetime or authority is refused by name",
          "[certificates]") {
  const CertificatePem authority = Authority();
  CHECK(JobOfAuthority(authority.cert_pem).value() == "my job/1");
  const auto refused = [&](const Identity& identity, const std::vector<std::string>& hosts,
                           int days) {
    return Refused(IssueCertificate(authority, identity, hosts, days, kNow).status());
  };
  CHECK_THAT(refused(ReceiverIdentity("another", "r"), {}, 90),
             Catch::Contains("signs for job 'my job/1', not for job 'another'"));
  CHECK_THAT(refused(ReceiverIdentity("my job/1", ""), {}, 90), Catch::Contains("a part is empty"));
  CHECK_THAT(refused({.job_id = "my job/1", .role = Role::kPublish, .name = "first"}, {}, 90),
             Catch::Contains("the rank is not a number"));
  CHECK_THAT(refused(kReceiver, {"engine 0"}, 90), Catch::Contains("'engine 0' is not a host"));
  CHECK_THAT(refused(kReceiver, std::vector<std::string>(65, "a.example"), 90),
             Catch::Contains("65 hosts, expected at most 64"));
  CHECK_THAT(refused(kReceiver, {}, 0), Catch::Contains("expected 1 to 825 days, found 0"));
  CHECK_THAT(refused(kReceiver, {}, 101), Catch::Contains("would outlive its authority"));
  CHECK_THAT(Refused(MakeAuthority("", 90, kNow).status()), Catch::Contains("a part is empty"));
  CHECK_THAT(Refused(MakeAuthority("j", 7301, kNow).status()), Catch::Contains("7300 days"));

  const CertificatePem mixed{.cert_pem = authority.cert_pem, .key_pem = Authority().key_pem};
  CHECK_THAT(Refused(IssueCertificate(mixed, kReceiver, {}, 90, kNow).status()),
             Catch::Contains("key is not that of its certificate"));
  const CertificatePem stranger{.cert_pem = TestAuthority("ca").pem(), .key_pem = ""};
  CHECK_THAT(Refused(IssueCertificate(stranger, kReceiver, {}, 90, kNow).status()),
             Catch::Contains("names no job"));
  CHECK_THAT(Refused(ReadCertificate("nonsense").status()),
             Catch::Contains("expected a certificate in PEM"));
}

TEST_CASE("hosts are DNS names and addresses", "[certificates]") {
  for (const char* host : {"localhost", "engine-0.example.net", "*.example", "a_b.example",
                           "10.0.0.5", "::1", "2001:db8::1", "x1.2y"}) {
    INFO(host);
    CHECK(CheckHost(host).ok());
  }
  const std::string long_label(64, 'a');
  for (const std::string& host :
       {std::string(), std::string("a b"), std::string("a..b"), std::string("a."),
        std::string("-a"), std::string("a-.b"), std::string("*"), std::string("a.*.b"),
        std::string("10.0.0.256"), std::string("10.0.0"), std::string("engine0:7700"),
        std::string("http://x"), std::string("a\nb"), std::string("a\0b", 3), long_label,
        std::string(254, 'a')}) {
    INFO(host);
    CHECK(absl::IsInvalidArgument(CheckHost(host)));
  }
}

}  // namespace dws
