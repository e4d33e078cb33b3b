// Whom a receiver takes for the sender of a trainer rank.
#include "receiver_daemon/transfer/sender_channel.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <string>

#include "tests/fakes/temp_folder.h"
#include "tests/fakes/test_certificates.h"

namespace dws {

TEST_CASE("with certificates, only the publisher of the rank is taken for its sender", "[tls]") {
  TempFolder folder;
  const TestAuthority authority("ca");
  const TestPair pair = authority.Issue({.names = {"URI:dws://job/receive/r0"}});
  const TlsFiles files = {
      .ca = folder.File("ca"), .cert = folder.File("cert"), .key = folder.File("key")};
  std::ofstream(files.ca) << authority.pem();
  std::ofstream(files.cert) << pair.cert_pem;
  std::ofstream(files.key) << pair.key_pem;
  auto credentials = Credentials::Load({.files = files});
  REQUIRE(credentials.ok());
  const SenderChannel channel("127.0.0.1:1", "job",
                              {.credentials = *credentials, .server_name = ""});
  const auto check = [&channel](bool verified, const Identity& identity) {
    return channel.CheckPublisher({.verified = verified, .identities = {identity}}, 3).code();
  };
  CHECK(check(true, SenderIdentity("job", 3)) == absl::StatusCode::kOk);
  CHECK(check(true, SenderIdentity("job", 4)) == absl::StatusCode::kPermissionDenied);
  CHECK(check(true, SenderIdentity("other", 3)) == absl::StatusCode::kPermissionDenied);
  CHECK(check(true, ReceiverIdentity("job", "3")) == absl::StatusCode::kPermissionDenied);
  CHECK(check(false, SenderIdentity("job", 3)) == absl::StatusCode::kUnauthenticated);
  CHECK(channel.CheckPublisher({}, 3).code() == absl::StatusCode::kUnauthenticated);
}

TEST_CASE("without certificates nobody can prove who he is", "[tls]") {
  const SenderChannel channel("127.0.0.1:1", "job", {});
  CHECK(channel.CheckPublisher({}, 3).ok());
}

}  // namespace dws
