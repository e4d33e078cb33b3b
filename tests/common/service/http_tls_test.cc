// The HTTP endpoint over mutual TLS, with real handshakes.
#include <openssl/ssl.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <memory>
#include <string>

#include "common/service/http/http_endpoint.h"
#include "common/service/http/https_context.h"
#include "common/service/security/credentials.h"
#include "tests/common/service/http_client.h"
#include "tests/fakes/temp_folder.h"
#include "tests/fakes/test_certificates.h"

namespace dws {
namespace {

constexpr const char* kRequest = "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";

// The daemon's files, an endpoint that uses them, and clients of the same authority.
class Fixture {
 public:
  explicit Fixture(const std::string& address = "0.0.0.0:0",
                   std::chrono::seconds timeout = std::chrono::seconds(20)) {
    Install();
    auto loaded = Credentials::Load({.files = files_, .check_interval = std::chrono::hours(1)});
    REQUIRE(loaded.ok());
    credentials = *std::move(loaded);
    auto listening = HttpEndpoint::Listen(
        {.address = address, .tls = MakeHttpsContextSource(credentials, "job"), .timeout = timeout},
        {{.path = "/healthz", .render = [] { return HttpReply{.body = "ok\n"}; }}});
    REQUIRE(listening.ok());
    endpoint = *std::move(listening);
  }
  // Installs a new certificate of the daemon and returns it.
  std::string Install() {
    const TestPair pair = authority.Issue({.names = {"DNS:localhost", "URI:dws://job/publish/0"}});
    std::ofstream(files_.ca) << authority.pem();
    std::ofstream(files_.cert) << pair.cert_pem;
    std::ofstream(files_.key) << pair.key_pem;
    return pair.cert_pem;
  }
  TestPair Operator() const { return authority.Issue({.names = {"URI:dws://job/operate/p"}}); }
  uint16_t port() const { return endpoint->port(); }

  TestAuthority authority{"ca"};
  std::shared_ptr<Credentials> credentials;
  std::unique_ptr<HttpEndpoint> endpoint;

 private:
  TempFolder folder_;
  TlsFiles files_ = {
      .ca = folder_.File("ca"), .cert = folder_.File("cert"), .key = folder_.File("key")};
};

template <typename T>
std::unique_ptr<T, void (*)(T*)> Own(T* made, void (*destroy)(T*)) {
  return {made, destroy};
}

BIO* Memory(const std::string& text) {
  return ::BIO_new_mem_buf(text.data(), static_cast<int>(text.size()));
}

// A client's end of one connection. With a null `pair` it has no certificate.
class TlsClient {
 public:
  TlsClient(uint16_t port, const TestPair* pair) : client_(port) {
    if (pair != nullptr) {
      const auto cert_text = Own(
          Memory(pair->cert_pem), +[](BIO* bio) { ::BIO_free(bio); });
      const auto key_text = Own(
          Memory(pair->key_pem), +[](BIO* bio) { ::BIO_free(bio); });
      const auto cert =
          Own(::PEM_read_bio_X509(cert_text.get(), nullptr, nullptr, nullptr), ::X509_free);
      const auto key = Own(::PEM_read_bio_PrivateKey(key_text.get(), nullptr, nullptr, nullptr),
                           ::EVP_PKEY_free);
      REQUIRE(::SSL_CTX_use_certificate(context_.get(), cert.get()) == 1);
      REQUIRE(::SSL_CTX_use_PrivateKey(context_.get(), key.get()) == 1);
    }
    ssl_.reset(::SSL_new(context_.get()));
    ::SSL_set_fd(ssl_.get(), client_.fd());
    connected_ = ::SSL_connect(ssl_.get()) == 1;
  }
  bool connected() const { return connected_; }

  // Empty when the server refuses us: with TLS 1.3 a client sees the refusal only when it reads.
  std::string Ask() {
    if (!connected_ ||
        ::SSL_write(ssl_.get(), kRequest, static_cast<int>(std::strlen(kRequest))) <= 0) {
      return "";
    }
    std::string answer;
    char part[1000];
    for (int size; (size = ::SSL_read(ssl_.get(), part, sizeof(part))) > 0;) {
      answer.append(part, static_cast<size_t>(size));
    }
    return answer;
  }
  std::string ServerCertificate() {
    const auto cert = Own(::SSL_get1_peer_certificate(ssl_.get()), ::X509_free);
    const auto text = Own(
        ::BIO_new(::BIO_s_mem()), +[](BIO* bio) { ::BIO_free(bio); });
    REQUIRE(::PEM_write_bio_X509(text.get(), cert.get()) == 1);
    char* bytes = nullptr;
    const auto size = ::BIO_get_mem_data(text.get(), &bytes);
    return {bytes, static_cast<size_t>(size)};
  }

 private:
  HttpClient client_;
  std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context_{::SSL_CTX_new(::TLS_client_method()),
                                                        ::SSL_CTX_free};
  std::unique_ptr<SSL, void (*)(SSL*)> ssl_{nullptr, ::SSL_free};
  bool connected_ = false;
};

std::string Ask(uint16_t port, const TestPair* pair) { return TlsClient(port, pair).Ask(); }

TEST_CASE("beyond loopback a page is served only to certificates of the job", "[http_tls]") {
  Fixture fixture;
  const TestPair known = fixture.Operator();
  const std::string answer = Ask(fixture.port(), &known);
  CHECK_THAT(answer, Catch::StartsWith("HTTP/1.1 200 ") && Catch::EndsWith("ok\n"));

  CHECK(Ask(fixture.port(), nullptr).empty());
  const TestAuthority stranger("ca");
  const TestPair forged = stranger.Issue({.names = {"URI:dws://job/operate/p"}});
  CHECK(Ask(fixture.port(), &forged).empty());
  const TestPair elsewhere = fixture.authority.Issue({.names = {"URI:dws://other/operate/p"}});
  CHECK(Ask(fixture.port(), &elsewhere).empty());
  CHECK_THAT(Ask(fixture.port(), &known), Catch::StartsWith("HTTP/1.1 200 "));
}

TEST_CASE("clear text to a TLS port is not answered", "[http_tls]") {
  Fixture fixture;
  CHECK_THAT(HttpClient::Request(fixture.port(), kRequest), !Catch::Contains("HTTP/1.1 200"));
  const TestPair known = fixture.Operator();
  CHECK_THAT(Ask(fixture.port(), &known), Catch::StartsWith("HTTP/1.1 200 "));
}

TEST_CASE("loopback is served without TLS", "[http_tls]") {
  Fixture fixture("127.0.0.1:0");
  CHECK_THAT(HttpClient::Request(fixture.port(), kRequest), Catch::StartsWith("HTTP/1.1 200 "));
}

TEST_CASE("new connections use new certificates and old ones keep theirs", "[http_tls]") {
  Fixture fixture;
  const TestPair known = fixture.Operator();
  TlsClient before(fixture.port(), &known);
  REQUIRE(before.connected());
  const std::string renewed = fixture.Install();
  REQUIRE(fixture.credentials->Reload().ok());
  TlsClient after(fixture.port(), &known);
  REQUIRE(after.connected());
  CHECK(after.ServerCertificate() == renewed);
  CHECK(before.ServerCertificate() != renewed);
  CHECK_THAT(before.Ask(), Catch::StartsWith("HTTP/1.1 200 "));
  CHECK_THAT(after.Ask(), Catch::StartsWith("HTTP/1.1 200 "));
}

TEST_CASE("a handshake that never ends is cut off", "[http_tls]") {
  Fixture fixture("0.0.0.0:0", std::chrono::seconds(2));
  HttpClient silent(fixture.port());
  CHECK(silent.ReadAll().empty());  // returns when the endpoint has hung up
  const TestPair known = fixture.Operator();
  CHECK_THAT(Ask(fixture.port(), &known), Catch::StartsWith("HTTP/1.1 200 "));
}

}  // namespace
}  // namespace dws
