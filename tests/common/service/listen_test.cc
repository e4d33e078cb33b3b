#include <sys/socket.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <string>

#include "common/service/listen_address.h"
#include "common/service/sockets/unix_socket.h"
#include "tests/fakes/temp_folder.h"

namespace dws {
namespace {

TEST_CASE("listen addresses are parsed and written", "[service]") {
  for (const std::string text : {"127.0.0.1:7700", "[::1]:0", "0.0.0.0:65535", "localhost:80"}) {
    const Result<ListenAddress> address = ParseListenAddress(text);
    REQUIRE(address.ok());
    CHECK(address->ToString() == text);
  }
  CHECK(ParseListenAddress("[fe80::1]:8")->host == "fe80::1");
}

TEST_CASE("a malformed address is refused and quoted", "[service]") {
  for (const std::string text : {"", "7700", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x",
                                 "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:80 ", "::1:80",
                                 "[::1]", "host.example:80", ":80", "[127.0.0.1]:80", "1.2.3:80"}) {
    INFO(text);
    const Result<ListenAddress> address = ParseListenAddress(text);
    REQUIRE(absl::IsInvalidArgument(address.status()));
    CHECK_THAT(std::string(Message(address.status())), Catch::Contains("\"" + text + "\""));
  }
}

TEST_CASE("an address that others can reach needs --insecure", "[service]") {
  for (const char* text : {"127.0.0.1:1", "127.8.9.1:1", "[::1]:1", "localhost:1"}) {
    CHECK(CheckExposure(*ParseListenAddress(text), "--listen", false).ok());
  }
  for (const char* text : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[2001:db8::1]:1"}) {
    const Status refused = CheckExposure(*ParseListenAddress(text), "--listen", false);
    CHECK(absl::IsFailedPrecondition(refused));
    CHECK_THAT(std::string(Message(refused)),
               Catch::Contains("--listen") && Catch::Contains("--insecure"));
    CHECK(CheckExposure(*ParseListenAddress(text), "--listen", true).ok());
  }
}

TEST_CASE("gRPC without TLS needs --insecure even on loopback", "[service]") {
  for (const char* text : {"127.0.0.1:1", "[::1]:1", "localhost:1", "0.0.0.0:1", "10.0.0.1:1"}) {
    const Status refused = CheckPlainListener(*ParseListenAddress(text), false);
    CHECK(absl::IsFailedPrecondition(refused));
    CHECK_THAT(std::string(Message(refused)),
               Catch::Contains("--tls-ca") && Catch::Contains("--insecure") &&
                   Catch::Contains("dws-certificates") && Catch::Contains("--socket"));
    CHECK(CheckPlainListener(*ParseListenAddress(text), true).ok());
  }
}

TEST_CASE("a socket path that is too long is refused with its length", "[service]") {
  CHECK(ClearSocketPath("/tmp/" + std::string(102, 'x'), SOCK_STREAM).ok());
  const Status status = ClearSocketPath("/tmp/" + std::string(103, 'x'), SOCK_STREAM);
  CHECK(absl::IsInvalidArgument(status));
  CHECK_THAT(std::string(Message(status)), Catch::Contains("108 bytes"));
}

TEST_CASE("a file that is not a socket is never removed", "[service]") {
  TempFolder folder;
  std::ofstream(folder.File("precious")) << "x";
  CHECK(absl::IsFailedPrecondition(ClearSocketPath(folder.File("precious"), SOCK_STREAM)));
  CHECK(std::ifstream(folder.File("precious")).good());
}

}  // namespace
}  // namespace dws
