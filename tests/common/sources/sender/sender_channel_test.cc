// Which peers a receiver accepts as the sender of a trainer rank.
#include "common/sources/sender/sender_channel.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <string>

#include "common/service/peers/peer_address.h"
#include "common/service/sockets/unix_listener.h"
#include "tests/fakes/temp_folder.h"
#include "tests/fakes/test_certificates.h"

namespace dws {

TEST_CASE("with certificates only the publisher of a rank is accepted as its sender", "[tls]") {
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
    return channel.CheckSender({.verified = verified, .identities = {identity}}, 3).code();
  };
  CHECK(check(true, SenderIdentity("job", 3)) == absl::StatusCode::kOk);
  CHECK(check(true, SenderIdentity("job", 4)) == absl::StatusCode::kPermissionDenied);
  CHECK(check(true, SenderIdentity("other", 3)) == absl::StatusCode::kPermissionDenied);
  CHECK(check(true, ReceiverIdentity("job", "3")) == absl::StatusCode::kPermissionDenied);
  CHECK(check(false, SenderIdentity("job", 3)) == absl::StatusCode::kUnauthenticated);
  CHECK(channel.CheckSender({}, 3).code() == absl::StatusCode::kUnauthenticated);
  const SenderChannel trains("127.0.0.1:1", "job", {.credentials = *credentials, .server_name = ""},
                             Role::kTrain);
  const auto check_train = [&trains](const Identity& identity) {
    return trains.CheckSender({.verified = true, .identities = {identity}}, 3).code();
  };
  CHECK(check_train(SenderIdentity("job", 3, Role::kTrain)) == absl::StatusCode::kOk);
  CHECK(check_train(SenderIdentity("job", 3)) == absl::StatusCode::kPermissionDenied);
  // A sender on this host is reached by its socket, and the kernel reports its user.
  const SenderChannel local("unix:/run/dws/s.sock", "job",
                            {.credentials = *credentials, .server_name = ""});
  CHECK(local.CheckSender({}, 3).ok());
}

TEST_CASE("a channel connects to a sender's unix socket once a process listens there", "[unix]") {
  TempFolder folder;
  const std::string path = folder.File("s.sock");
  SenderChannel channel("unix:" + path, "job", {});
  const Status nobody = channel.Refresh();
  CHECK(absl::IsUnavailable(nobody));
  CHECK_THAT(std::string(Message(nobody)), Catch::Contains(path));
  auto listener =
      UnixListener::Listen({.path = path, .first_bytes = 1, .on_connection = [](UniqueFd) {}});
  REQUIRE(listener.ok());
  CHECK(channel.Refresh().ok());
  // The kernel has reported the listener's user, so no certificate is needed.
  CHECK(channel.CheckSender({}, 3).ok());
}

TEST_CASE("a unix socket is trusted if root or this user or an allowed user serves it", "[unix]") {
  const uid_t stranger = ::geteuid() + 4242;
  const auto check = [](const AllowedUsers& users, uid_t uid) {
    return users.CheckServer({.uid = uid, .pid = 1}, "/run/dws/s.sock");
  };
  for (const AllowedUsers& users : {AllowedUsers(), AllowedUsers::Only({stranger + 1})}) {
    CHECK(check(users, 0).ok());
    CHECK(check(users, ::geteuid()).ok());
    const Status refused = check(users, stranger);
    CHECK(refused.code() == absl::StatusCode::kPermissionDenied);
    CHECK_THAT(std::string(Message(refused)), Catch::Contains("/run/dws/s.sock") &&
                                                  Catch::Contains(fmt::format("{}", stranger)) &&
                                                  Catch::Contains("--allow-user"));
  }
  CHECK(check(AllowedUsers::Only({stranger}), stranger).ok());
}

TEST_CASE("another daemon's address is a host and port, or an absolute path", "[unix]") {
  const std::string longest = "unix:/" + std::string(106, 'x');
  for (const std::string good :
       {"a:1", "a-b_c.example:7", "[::1]:65535", "10.0.0.1:7700", "unix:/run/dws/s.sock"}) {
    INFO(good);
    CHECK(CheckPeerAddress(good, "a sender").ok());
  }
  CHECK(CheckPeerAddress(longest, "a sender").ok());
  for (const std::string bad : {"",
                                "a",
                                "a:",
                                ":1",
                                "a:0",
                                "a:65536",
                                "a:1x",
                                "unix:",
                                "unix:s.sock",
                                "unix:@name",
                                "unix-abstract:name",
                                "/run/dws/s.sock",
                                "0.0.0.0:1",
                                "[::]:1",
                                "::1:7900",
                                "*:1",
                                "http://h:1",
                                "u@h:1",
                                "h,g:1",
                                "dns:///h:1",
                                "[::1:1",
                                "[]:1",
                                "a b:1"}) {
    INFO(bad);
    const Status refused = CheckPeerAddress(bad, "a sender");
    CHECK(absl::IsInvalidArgument(refused));
    CHECK_THAT(std::string(Message(refused)), Catch::Contains("'" + bad + "'"));
  }
  CHECK(absl::IsInvalidArgument(CheckPeerAddress(longest + "x", "a sender")));
  CHECK(absl::IsInvalidArgument(CheckPeerAddress(std::string("unix:/a\0b", 9), "a sender")));
  CHECK(UnixPathOf("unix:/a") == "/a");
  CHECK(UnixPathOf("host:1") == std::nullopt);
}

TEST_CASE("without certificates every peer is accepted", "[tls]") {
  const SenderChannel channel("127.0.0.1:1", "job", {});
  CHECK(channel.CheckSender({}, 3).ok());
}

}  // namespace dws
