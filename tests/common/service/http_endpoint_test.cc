#include "common/service/http/http_endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/unique_fd.h"
#include "proto/admin.pb.h"
#include "tests/common/service/http_client.h"

namespace dws {
namespace {

std::string Get(uint16_t port, const std::string& path, int timeout_ms = 20'000) {
  return HttpClient::Get(port, path, timeout_ms);
}

TEST_CASE("readyz says why a daemon is not ready and healthz that it is alive", "[http]") {
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

TEST_CASE("a page in the list is served with its content type", "[http]") {
  std::vector<HttpPage> pages = {
      {.path = "/status",
       .render = [] { return HttpReply{.content_type = "application/json", .body = "{}"}; }}};
  auto endpoint = HttpEndpoint::Listen({}, std::move(pages));
  REQUIRE(endpoint.ok());
  CHECK_THAT(Get((*endpoint)->port(), "/status"),
             Catch::Contains("Content-Type: application/json") && Catch::EndsWith("{}"));
}

TEST_CASE("a port in use and an address that others can reach are refused", "[http]") {
  auto first = HttpEndpoint::Listen({}, {});
  REQUIRE(first.ok());
  const std::string address = fmt::format("127.0.0.1:{}", (*first)->port());
  const Status in_use = HttpEndpoint::Listen({.address = address}, {}).status();
  CHECK(absl::IsUnavailable(in_use));
  CHECK_THAT(std::string(Message(in_use)), Catch::Contains(address));

  CHECK(absl::IsFailedPrecondition(HttpEndpoint::Listen({.address = "0.0.0.0:0"}, {}).status()));
  CHECK(HttpEndpoint::Listen({.address = "0.0.0.0:0", .insecure = true}, {}).ok());
}

TEST_CASE("IPv6 is served like IPv4", "[http]") {
  Lifecycle lifecycle;
  auto endpoint = HttpEndpoint::Listen({.address = "[::1]:0"}, HealthPages(lifecycle));
  if (!endpoint.ok()) {
    WARN("skipped, this machine has no IPv6: " << endpoint.status());
    return;
  }
  const UniqueFd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons((*endpoint)->port())};
  address.sin6_addr = in6addr_loopback;
  REQUIRE(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  const std::string request = "GET /healthz HTTP/1.1\r\n\r\n";
  REQUIRE(::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) > 0);
  char answer[100] = {};
  CHECK(::recv(fd.get(), answer, sizeof(answer) - 1, MSG_WAITALL) > 0);
  CHECK_THAT(std::string(answer), Catch::StartsWith("HTTP/1.1 200 OK"));
}

TEST_CASE("GET and HEAD are answered and everything else is refused with the right code",
          "[http]") {
  Lifecycle lifecycle;
  auto endpoint = HttpEndpoint::Listen({}, HealthPages(lifecycle));
  REQUIRE(endpoint.ok());
  const uint16_t port = (*endpoint)->port();
  const auto answer = [port](const std::string& line) {
    return HttpClient::Request(port, line + "\r\nHost: a\r\n\r\n");
  };
  const std::string head = answer("HEAD /healthz HTTP/1.1");
  CHECK_THAT(head, Catch::StartsWith("HTTP/1.1 200 ") && Catch::Contains("Content-Length: 3\r\n") &&
                       Catch::EndsWith("\r\n\r\n"));
  CHECK_THAT(answer("HEAD /readyz HTTP/1.0"), Catch::StartsWith("HTTP/1.1 503 "));
  CHECK_THAT(answer("GET /healthz?verbose=1 HTTP/1.1"), Catch::StartsWith("HTTP/1.1 200 "));
  CHECK_THAT(answer("GET http://proxy:80/healthz HTTP/1.1"), Catch::StartsWith("HTTP/1.1 200 "));
  CHECK_THAT(answer("POST /healthz HTTP/1.1"),
             Catch::StartsWith("HTTP/1.1 405 ") && Catch::Contains("Allow: GET, HEAD"));
  CHECK_THAT(answer("DELETE /healthz HTTP/1.1"), Catch::StartsWith("HTTP/1.1 405 "));
  CHECK_THAT(answer("GET /healthz HTTP/2.0"), Catch::StartsWith("HTTP/1.1 505 "));
  for (const char* line : {"", "GET", "GET /healthz", "GET  HTTP/1.1", "GET healthz HTTP/1.1",
                           "GET /a b HTTP/1.1", "GET /healthz FTP/1.1"}) {
    INFO(line);
    CHECK_THAT(answer(line), Catch::StartsWith("HTTP/1.1 400 "));
  }
  for (const char* path : {"/", "/healthz/", "/../healthz", "/Healthz", "/%68ealthz"}) {
    CHECK_THAT(Get(port, path), Catch::StartsWith("HTTP/1.1 404 "));
  }
}

TEST_CASE("the status page is the status reply as JSON with field names and defaults", "[http]") {
  std::vector<HttpPage> pages = {StatusPage([](v1::StatusReply& reply) {
    reply.set_daemon("dws-sender");
    reply.set_reason("\"quoted\"\n");
    reply.mutable_sender()->set_newest_version(7);
  })};
  auto endpoint = HttpEndpoint::Listen({}, std::move(pages));
  REQUIRE(endpoint.ok());
  const std::string answer = Get((*endpoint)->port(), "/status");
  CHECK_THAT(answer, Catch::Contains("Content-Type: application/json"));
  CHECK_THAT(answer, Catch::Contains(R"("daemon":"dws-sender")") &&
                         Catch::Contains(R"("reason":"\"quoted\"\n")") &&
                         Catch::Contains(R"("ready":false)") &&
                         Catch::Contains(R"("newest_version":"7")") &&
                         Catch::Contains(R"("retain_bytes_max":"0")"));
}

TEST_CASE("the page at / is HTML whose policy allows nothing but itself, and is not cached",
          "[http]") {
  Lifecycle lifecycle;
  Metrics metrics({});
  auto endpoint = HttpEndpoint::Listen(
      {}, DaemonPages(lifecycle, metrics, [](v1::StatusReply& reply) { reply.set_ready(true); }));
  REQUIRE(endpoint.ok());
  const uint16_t port = (*endpoint)->port();

  const std::string page = Get(port, "/");
  const std::string head = page.substr(0, page.find("\r\n\r\n") + 2);
  CHECK_THAT(head, Catch::StartsWith("HTTP/1.1 200 OK\r\n") &&
                       Catch::Contains("\r\nContent-Type: text/html; charset=utf-8\r\n") &&
                       Catch::Contains("\r\nCache-Control: no-store\r\n") &&
                       Catch::Contains("\r\nX-Content-Type-Options: nosniff\r\n") &&
                       Catch::Contains("\r\nReferrer-Policy: no-referrer\r\n"));
  CHECK_THAT(head, Catch::Contains("\r\nContent-Security-Policy: default-src 'none'; "
                                   "script-src 'sha256-") &&
                       Catch::Contains("; style-src 'sha256-") &&
                       Catch::Contains("; connect-src 'self'; ") &&
                       Catch::Contains("; frame-ancestors 'none'\r\n") &&
                       !Catch::Contains("unsafe-"));
  CHECK_THAT(page, Catch::Contains("\r\n\r\n<!DOCTYPE html>") && Catch::EndsWith("</html>\n"));
  CHECK_THAT(HttpClient::Request(port, "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n"),
             Catch::StartsWith("HTTP/1.1 200 ") && Catch::EndsWith("\r\n\r\n") &&
                 Catch::Contains("Content-Security-Policy: "));
  // With it, the other pages are served as before.
  for (const char* path : {"/?from=mail", "/healthz", "/status", "/metrics"}) {
    CHECK_THAT(Get(port, path), Catch::StartsWith("HTTP/1.1 200 "));
  }
  CHECK_THAT(Get(port, "/status"), !Catch::Contains("Content-Security-Policy"));
  for (const char* path : {"/index.html", "/page.js", "/favicon.ico"}) {
    CHECK_THAT(Get(port, path), Catch::StartsWith("HTTP/1.1 404 "));
  }
}

TEST_CASE("metrics are served in the format of Prometheus", "[http]") {
  Metrics metrics({});
  metrics.AddCounter("dws_things_total", "Things.").Increment(3);
  auto endpoint = HttpEndpoint::Listen({}, {MetricsPage(metrics)});
  REQUIRE(endpoint.ok());
  const std::string answer = Get((*endpoint)->port(), "/metrics");
  CHECK_THAT(answer, Catch::Contains("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  CHECK_THAT(answer, Catch::Contains("# HELP dws_things_total Things.\n"
                                     "# TYPE dws_things_total counter\n"
                                     "dws_things_total 3\n"));
}

TEST_CASE("probes while the endpoint is destroyed are harmless", "[http]") {
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
