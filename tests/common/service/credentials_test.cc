#include "common/service/security/credentials.h"

#include <openssl/ssl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "common/service/http/https_context.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/temp_folder.h"
#include "tests/fakes/test_certificates.h"

namespace dws {
namespace {

const std::string kUri = "URI:dws://job/receive/r0";
const Identity kIdentity = ReceiverIdentity("job", "r0");

struct Fixture {
  TempFolder folder;
  TestAuthority authority{"ca"};
  TlsFiles files = {
      .ca = folder.File("ca"), .cert = folder.File("cert"), .key = folder.File("key")};

  static void Write(const std::string& path, const std::string& text) {
    std::ofstream(path) << text;
  }
  static std::string ReadText(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Install(const std::string& ca, const std::string& cert, const std::string& key) const {
    Write(files.ca, ca);
    Write(files.cert, cert);
    Write(files.key, key);
  }
  void Install(const TestPair& pair) const {
    Install(authority.pem(), pair.cert_pem, pair.key_pem);
  }
  TestPair Issue() const { return authority.Issue({.names = {kUri}}); }

  Result<std::shared_ptr<Credentials>> Load(
      std::chrono::milliseconds interval = std::chrono::hours(1)) const {
    return Credentials::Load({.files = files, .required = {kIdentity}, .check_interval = interval});
  }
};

TEST_CASE("good files are loaded with their identities and expiry", "[credentials]") {
  Fixture fixture;
  fixture.Install(fixture.authority.Issue(
      {.names = {"DNS:localhost", "URI:https://elsewhere", "URI:dws://job/operate/a%20b", kUri}}));
  const auto credentials = fixture.Load();
  REQUIRE(credentials.ok());
  const auto material = (*credentials)->current();
  REQUIRE(material->identities.size() == 2);
  CHECK(material->identity() == "dws://job/operate/a%20b");
  CHECK(material->identities[1] == kIdentity);
  const auto left = material->expires_unix_seconds - std::time(nullptr);
  CHECK(left > 86000);
  CHECK(left <= 86400);
  CHECK(material->generation == 1);
}

TEST_CASE("files that would not work are refused and the error says why", "[credentials]") {
  Fixture fixture;
  const TestPair good = fixture.Issue();
  const TestPair other = fixture.Issue();
  const TestAuthority stranger("stranger");
  struct Case {
    std::string ca, cert, key, words;
  };
  const auto issue = [&](const TestAuthority::Wish& wish) { return fixture.authority.Issue(wish); };
  const TestPair expired = issue({.names = {kUri}, .begins_in_seconds = -9, .ends_in_seconds = -1});
  const TestPair early = issue({.names = {kUri}, .begins_in_seconds = 99});
  const TestPair nameless = issue({.names = {}});
  const TestPair another = issue({.names = {"URI:dws://job/receive/r1"}});
  const TestPair weak = issue({.names = {kUri}, .weak = true});
  const TestPair malformed = issue({.names = {kUri, "URI:dws://job/king/r1"}});
  const std::string ca = fixture.authority.pem();
  const Case cases[] = {
      {"", good.cert_pem, good.key_pem, "/ca: expected certificates in PEM, found 0"},
      {ca, "hello", good.key_pem, "/cert: expected certificates in PEM, found 0"},
      {ca, good.cert_pem + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
       good.key_pem, "found 1 and then"},
      {ca, good.cert_pem, "", "/key: expected a private key"},
      {ca, good.cert_pem, EncryptedKey(good), "/key: expected a private key"},
      {ca, good.cert_pem, other.key_pem, "/key: the key is not that of the certificate"},
      {ca, expired.cert_pem, expired.key_pem, "/cert: the certificate expired at "},
      {ca, early.cert_pem, early.key_pem, "/cert: the certificate is not valid before "},
      {stranger.pem(), good.cert_pem, good.key_pem, "not signed by a CA in "},
      {ca, nameless.cert_pem, nameless.key_pem, "dws://job/receive/r0"},
      {ca, another.cert_pem, another.key_pem, "found dws://job/receive/r1"},
      {ca, weak.cert_pem, weak.key_pem, "EE certificate key too weak; issue it again"},
      {ca, malformed.cert_pem, malformed.key_pem, "an unknown role"},
  };
  for (const Case& wrong : cases) {
    INFO(wrong.words);
    fixture.Install(wrong.ca, wrong.cert, wrong.key);
    const Status refused = fixture.Load().status();
    CHECK(absl::IsFailedPrecondition(refused));
    CHECK_THAT(std::string(Message(refused)), Catch::Contains(wrong.words));
  }
}

TEST_CASE("the three files must be given together and must exist", "[credentials]") {
  Fixture fixture;
  CHECK(CheckTlsFiles({}).ok());
  const Status missing = CheckTlsFiles({.ca = "x", .cert = "", .key = ""});
  CHECK_THAT(std::string(Message(missing)), Catch::Contains("--tls-cert and --tls-key missing"));
  CHECK_THAT(std::string(Message(fixture.Load().status())), Catch::Contains("--tls-ca"));
}

TEST_CASE("a pipe in the place of a file is refused without waiting for its writer",
          "[credentials]") {
  Fixture fixture;
  fixture.Install(fixture.Issue());
  const auto credentials = fixture.Load();
  REQUIRE(credentials.ok());
  for (const std::string& path : {fixture.files.ca, fixture.files.cert, fixture.files.key}) {
    const std::string text = Fixture::ReadText(path);
    REQUIRE(::unlink(path.c_str()) == 0);
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    CHECK_THAT(std::string(Message((*credentials)->Reload())), Catch::Contains("expected a file"));
    REQUIRE(::unlink(path.c_str()) == 0);
    Fixture::Write(path, text);
  }
  CHECK((*credentials)->Reload().ok());
}

TEST_CASE("a bad reload keeps the files in use and a good one replaces them", "[credentials]") {
  Fixture fixture;
  const TestPair first = fixture.Issue();
  fixture.Install(first);
  const auto credentials = fixture.Load();
  REQUIRE(credentials.ok());
  const TestPair second = fixture.Issue();
  Fixture::Write(fixture.files.cert, second.cert_pem);  // with the key of the first
  CHECK(absl::IsFailedPrecondition((*credentials)->Reload()));
  CHECK((*credentials)->current()->cert_pem == first.cert_pem);
  CHECK((*credentials)->current()->generation == 1);
  Fixture::Write(fixture.files.key, second.key_pem);
  CHECK((*credentials)->Reload().ok());
  CHECK((*credentials)->current()->cert_pem == second.cert_pem);
  CHECK((*credentials)->current()->generation == 2);
}

TEST_CASE("changed files are loaded without a reload command", "[credentials]") {
  Fixture fixture;
  fixture.Install(fixture.Issue());
  const auto credentials = fixture.Load(std::chrono::milliseconds(5));
  REQUIRE(credentials.ok());
  const TestPair second = fixture.Issue();
  fixture.Install(second);
  CHECK(Eventually([&] { return (*credentials)->current()->cert_pem == second.cert_pem; }));
  CHECK((*credentials)->current()->generation == 2);
}

TEST_CASE("files that are not valid yet are loaded once they are valid", "[credentials]") {
  Fixture fixture;
  fixture.Install(fixture.Issue());
  const auto credentials = fixture.Load(std::chrono::milliseconds(5));
  REQUIRE(credentials.ok());
  const TestPair early = fixture.authority.Issue({.names = {kUri}, .begins_in_seconds = 2});
  fixture.Install(early);
  CHECK(Eventually([&] { return (*credentials)->current()->cert_pem == early.cert_pem; }));
}

// The server's end of a handshake in memory with a client that shows `pair`, or nothing; true when
// both ends agree.
bool Handshake(SSL_CTX& server_context, const TestAuthority& authority, const TestPair* pair,
               int version = TLS1_3_VERSION) {
  const std::unique_ptr<SSL_CTX, SslContextDeleter> client_context(
      SSL_CTX_new(TLS_client_method()));
  SSL_CTX_set_security_level(client_context.get(), 0);
  SSL_CTX_set_min_proto_version(client_context.get(), version);
  SSL_CTX_set_max_proto_version(client_context.get(), version);
  TempFolder folder;
  if (pair != nullptr) {
    Fixture::Write(folder.File("cert"), pair->cert_pem);
    Fixture::Write(folder.File("key"), pair->key_pem);
    REQUIRE(SSL_CTX_use_certificate_chain_file(client_context.get(), folder.File("cert").c_str()));
    REQUIRE(SSL_CTX_use_PrivateKey_file(client_context.get(), folder.File("key").c_str(),
                                        SSL_FILETYPE_PEM));
  }
  Fixture::Write(folder.File("ca"), authority.pem());
  REQUIRE(SSL_CTX_load_verify_file(client_context.get(), folder.File("ca").c_str()));
  SSL_CTX_set_verify(client_context.get(), SSL_VERIFY_PEER, nullptr);
  SSL* const server = SSL_new(&server_context);
  SSL* const client = SSL_new(client_context.get());
  BIO* server_end = nullptr;
  BIO* client_end = nullptr;
  REQUIRE(BIO_new_bio_pair(&server_end, 1 << 16, &client_end, 1 << 16) == 1);
  SSL_set_bio(server, server_end, server_end);
  SSL_set_bio(client, client_end, client_end);
  SSL_set_accept_state(server);
  SSL_set_connect_state(client);
  bool agreed = false;
  for (int round = 0; round < 10; ++round) {
    const int one = SSL_do_handshake(client);
    const int two = SSL_do_handshake(server);
    agreed = one == 1 && two == 1;
  }
  SSL_free(server);
  SSL_free(client);
  return agreed;
}

TEST_CASE("HTTPS needs a client certificate with a role in the job", "[credentials]") {
  Fixture fixture;
  fixture.Install(fixture.Issue());
  const auto credentials = fixture.Load();
  REQUIRE(credentials.ok());
  const auto context = MakeHttpsContext(*(*credentials)->current(), "job");
  REQUIRE(context.ok());
  const auto shows = [&](const TestAuthority& signer, const TestAuthority::Wish& wish,
                         int version = TLS1_3_VERSION) {
    const TestPair pair = signer.Issue(wish);
    return Handshake(**context, fixture.authority, &pair, version);
  };
  for (const std::string name : {"URI:dws://job/operate/prometheus", "URI:dws://job/publish/0",
                                 "URI:dws://job/receive/r7"}) {
    CHECK(shows(fixture.authority, {.names = {"DNS:x", name}}));
    CHECK(shows(fixture.authority, {.names = {name}}, TLS1_2_VERSION));
    CHECK_FALSE(shows(fixture.authority, {.names = {name}}, TLS1_1_VERSION));
    CHECK_FALSE(shows(TestAuthority("ca"), {.names = {name}}));
    CHECK_FALSE(shows(fixture.authority, {.names = {name}, .ends_in_seconds = -1}));
    CHECK_FALSE(shows(fixture.authority, {.names = {name}, .begins_in_seconds = 99}));
  }
  CHECK_FALSE(shows(fixture.authority, {.names = {"URI:dws://another/operate/prometheus"}}));
  CHECK_FALSE(shows(fixture.authority, {.names = {"DNS:x"}}));
  CHECK_FALSE(Handshake(**context, fixture.authority, nullptr));
}

TEST_CASE("HTTPS makes a new context with the new files only after a reload", "[credentials]") {
  Fixture fixture;
  fixture.Install(fixture.Issue());
  const auto credentials = fixture.Load();
  REQUIRE(credentials.ok());
  const auto source = MakeHttpsContextSource(*credentials, "job");
  const auto first = source();
  REQUIRE(first != nullptr);
  CHECK(source() == first);
  fixture.Install(fixture.Issue());
  REQUIRE((*credentials)->Reload().ok());
  const auto second = source();
  REQUIRE(second != nullptr);
  CHECK(second != first);
  CHECK(source() == second);
}

}  // namespace
}  // namespace dws
