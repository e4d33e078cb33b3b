// Hostile clients of an HTTP endpoint: it continues to answer all others.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/threads/mutex.h"
#include "common/model/limits.h"
#include "common/service/http/http_endpoint.h"
#include "tests/common/service/http_client.h"
#include "tests/fakes/eventually.h"

namespace dws {
namespace {

using std::chrono::milliseconds;

std::unique_ptr<HttpEndpoint> Serve(HttpEndpoint::Options options,
                                    std::vector<HttpPage> more = {}) {
  std::vector<HttpPage> pages = {
      {.path = "/healthz", .render = [] { return HttpReply{.body = "ok\n"}; }}};
  for (HttpPage& page : more) pages.push_back(std::move(page));
  auto endpoint = HttpEndpoint::Listen(options, std::move(pages));
  REQUIRE(endpoint.ok());
  return *std::move(endpoint);
}

bool Healthy(uint16_t port) {
  return HttpClient::Get(port, "/healthz").starts_with("HTTP/1.1 200 ");
}

size_t OpenDescriptors() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    static_cast<void>(entry);
    ++count;
  }
  return count;
}

TEST_CASE("a client that sends its request too slowly is dropped in time", "[http]") {
  const auto endpoint = Serve({.timeout = milliseconds(400)});
  const auto began = std::chrono::steady_clock::now();  // before the endpoint can take it
  HttpClient slow(endpoint->port());
  REQUIRE(slow.Send("GET /healthz HTTP/1.1\r\n"));
  while (!slow.Readable(20) &&
         std::chrono::steady_clock::now() - began < std::chrono::seconds(10)) {
    slow.Send("X-Never: ends\r\n");
  }
  CHECK(slow.ReadAll().empty());
  CHECK(std::chrono::steady_clock::now() - began >= milliseconds(350));  // its clock is coarse
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(5));
  CHECK(Healthy(endpoint->port()));
}

TEST_CASE("a client that does not read its reply is dropped in time", "[http]") {
  const std::string body(64 << 20, 'x');
  const auto endpoint =
      Serve({.timeout = milliseconds(300)},
            {{.path = "/large", .render = [&body] { return HttpReply{.body = body}; }}});
  const size_t before = OpenDescriptors();
  HttpClient deaf(endpoint->port());
  REQUIRE(deaf.Send("GET /large HTTP/1.1\r\n\r\n"));
  REQUIRE(deaf.Readable(5000));
  CHECK(Eventually([&] { return OpenDescriptors() == before + 1; }));  // only the client's
  CHECK(deaf.ReadAll().size() < body.size());
}

TEST_CASE("request heads that are too large are refused and take no memory", "[http]") {
  const auto endpoint = Serve({});
  const uint16_t port = endpoint->port();
  const std::string fits = "GET /healthz HTTP/1.1\r\nX: ";
  const std::string filling(limits::kHttpHeadBytesMax - fits.size() - 4, 'x');
  CHECK_THAT(HttpClient::Request(port, fits + filling + "\r\n\r\n"),
             Catch::StartsWith("HTTP/1.1 200 "));
  CHECK_THAT(HttpClient::Request(port, fits + filling + "x\r\n\r\n"),
             Catch::StartsWith("HTTP/1.1 431 "));
  HttpClient endless(port);
  const std::string part(64 << 10, 'x');
  for (int i = 0; i < 1000 && endless.Send(part); ++i) {  // 64 MB, if the endpoint read them
  }
  CHECK(Healthy(port));
}

TEST_CASE("bodies are ignored and requests after the first are not answered", "[http]") {
  const auto endpoint = Serve({});
  const uint16_t port = endpoint->port();
  CHECK_THAT(HttpClient::Request(port, "GET /healthz HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"),
             Catch::StartsWith("HTTP/1.1 200 ") && Catch::EndsWith("ok\n"));
  std::string many;
  for (int i = 0; i < 100; ++i) many += "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
  const std::string answer = HttpClient::Request(port, many);
  CHECK_THAT(answer, Catch::StartsWith("HTTP/1.1 200 ") && Catch::Contains("Connection: close"));
  CHECK(answer.find("HTTP/1.1", 1) == std::string::npos);
}

TEST_CASE("bytes that are not HTTP are refused", "[http]") {
  const auto endpoint = Serve({});
  const uint16_t port = endpoint->port();
  CHECK_THAT(HttpClient::Request(port, std::string("\0\x01\xff \r\n\r\n", 8)),
             Catch::StartsWith("HTTP/1.1 400 "));
  CHECK_THAT(HttpClient::Request(port, "\r\n\r\n"), Catch::StartsWith("HTTP/1.1 400 "));
  HttpClient tls_hello(port, 200);
  REQUIRE(tls_hello.Send(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11)));
  CHECK(Healthy(port));
}

TEST_CASE("a thousand connections opened and dropped leak no descriptor", "[http]") {
  const auto endpoint = Serve({});
  const uint16_t port = endpoint->port();
  const size_t before = OpenDescriptors();
  for (int i = 0; i < 1000; ++i) {
    HttpClient client(port);
    REQUIRE(client.connected());
    if (i % 3 == 1) client.Send("GET /hea");
    if (i % 3 == 2) client.Send("GET /healthz HTTP/1.1\r\n\r\n");
  }
  CHECK(Healthy(port));
  CHECK(Eventually([&] { return OpenDescriptors() == before; }));
}

TEST_CASE("silent clients that take all connections do not shut others out", "[http]") {
  const auto endpoint = Serve({.connections_max = 8});
  const uint16_t port = endpoint->port();
  std::vector<std::unique_ptr<HttpClient>> silent;
  for (int i = 0; i < 50; ++i) silent.push_back(std::make_unique<HttpClient>(port));
  CHECK(Healthy(port));
  CHECK(silent.front()->ReadAll().empty());  // the oldest had to make room
  CHECK_FALSE(silent.back()->Readable(0));
}

TEST_CASE("a page that hangs does not block probes and the endpoint's end waits for it", "[http]") {
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  std::atomic<bool> entered{false};
  auto endpoint = Serve({}, {{.path = "/slow", .render = [&entered, released] {
                                entered = true;
                                released.wait();
                                return HttpReply{.body = "late\n"};
                              }}});
  HttpClient slow(endpoint->port());
  REQUIRE(slow.Send("GET /slow HTTP/1.1\r\n\r\n"));
  REQUIRE(Eventually([&] { return entered.load(); }));
  CHECK(Healthy(endpoint->port()));
  HttpClient idle(endpoint->port());
  std::thread ending([&] { endpoint.reset(); });
  CHECK(idle.ReadAll().empty());  // dropped at once
  release.set_value();
  CHECK_THAT(slow.ReadAll(), Catch::StartsWith("HTTP/1.1 200 ") && Catch::EndsWith("late\n"));
  ending.join();
}

}  // namespace
}  // namespace dws
