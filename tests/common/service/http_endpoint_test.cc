#include "common/service/http_endpoint.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/unique_fd.h"

namespace dws {
namespace {

// The whole answer to a GET, as it came; what there is after `timeout_ms` without any.
std::string Get(uint16_t port, const std::string& path, int timeout_ms = 20'000) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval timeout = {.tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return "";
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: test\r\n\r\n";
  if (::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return "";
  std::string answer;
  char part[1000];
  for (ssize_t size; (size = ::recv(fd.get(), part, sizeof(part), 0)) > 0;) {
    answer.append(part, static_cast<size_t>(size));
  }
  return answer;
}

TEST_CASE("readyz says why a daemon is not ready, healthz that it lives", "[http]") {
  Lifecycle lifecycle;
  auto endpoint = HttpEndpoint::Listen({}, HealthPages(lifecycle));
  REQUIRE(endpoint.ok());
  const uint16_t port = (*endpoint)->port();
  REQUIRE(port != 0);

  lifecycle.SetNotReady("no sender has announced a version");
  CHECK_THAT(Get(port, "/healthz"),
             Catch::StartsWith("HTTP/1.1 200 ") && Catch::EndsWith("\r\n\r\nok\n"));
  CHECK_THAT(Get(port, "/readyz"),
             Catch::StartsWith("HTTP/1.1 503 ") &&
                 Catch::EndsWith("\r\n\r\nno sender has announced a version\n"));
  lifecycle.SetReady();
  CHECK_THAT(Get(port, "/readyz"),
             Catch::StartsWith("HTTP/1.1 200 ") && Catch::EndsWith("ready\n"));
  lifecycle.SetStopping();
  CHECK_THAT(Get(port, "/readyz"),
             Catch::StartsWith("HTTP/1.1 503 ") && Catch::EndsWith("stopping\n"));
  CHECK_THAT(Get(port, "/healthz"), Catch::StartsWith("HTTP/1.1 200 "));
  CHECK_THAT(Get(port, "/nothing"), Catch::StartsWith("HTTP/1.1 404 "));
}

TEST_CASE("further pages are a list entry each", "[http]") {
  std::vector<HttpPage> pages = {
      {.path = "/status",
       .render = [] { return HttpReply{.content_type = "application/json", .body = "{}"}; }}};
  auto endpoint = HttpEndpoint::Listen({}, std::move(pages));
  REQUIRE(endpoint.ok());
  CHECK_THAT(Get((*endpoint)->port(), "/status"),
             Catch::Contains("Content-Type: application/json") && Catch::EndsWith("{}"));
}

TEST_CASE("a port in use, and an address others can reach, are refused by name", "[http]") {
  auto first = HttpEndpoint::Listen({}, {});
  REQUIRE(first.ok());
  const std::string address = fmt::format("127.0.0.1:{}", (*first)->port());
  const Status in_use = HttpEndpoint::Listen({.address = address}, {}).status();
  CHECK(absl::IsUnavailable(in_use));
  CHECK_THAT(std::string(Message(in_use)), Catch::Contains(address));

  CHECK(absl::IsFailedPrecondition(HttpEndpoint::Listen({.address = "0.0.0.0:0"}, {}).status()));
  CHECK(HttpEndpoint::Listen({.address = "0.0.0.0:0", .insecure = true}, {}).ok());
  CHECK(absl::IsInvalidArgument(HttpEndpoint::Listen({.address = "[::1]:0"}, {}).status()));
}

TEST_CASE("probes while the daemon stops do no harm", "[http]") {
  for (int round = 0; round < 3; ++round) {
    Lifecycle lifecycle;
    auto endpoint = HttpEndpoint::Listen({}, HealthPages(lifecycle));
    REQUIRE(endpoint.ok());
    std::atomic<bool> stop{false};
    std::thread probing([&stop, port = (*endpoint)->port()] {
      while (!stop) Get(port, "/readyz", 50);
    });
    for (int i = 0; i < 20; ++i) lifecycle.SetNotReady(std::to_string(i));
    endpoint->reset();
    stop = true;
    probing.join();
  }
}

}  // namespace
}  // namespace dws
