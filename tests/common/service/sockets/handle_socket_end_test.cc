// How registrations are ended by either side.
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "tests/common/service/sockets/handle_socket_case.h"
#include "tests/fakes/eventually.h"

namespace dws {
namespace {

using std::chrono::milliseconds;

TEST_CASE("a registration without a client ends with its timeout", "[handle_socket]") {
  Daemon daemon;
  const auto registration = daemon.Expect(
      1, {.timeout = milliseconds(20), .on_descriptors = nullptr, .on_hangup = nullptr});
  REQUIRE(Eventually([&] { return daemon.hangups == 1; }));
  CHECK(daemon.last_code == absl::StatusCode::kDeadlineExceeded);
  const UniqueFd client = Connect(daemon.socket->path());
  REQUIRE(Send(client, registration.token, 1, {client.get()}).ok());
  CHECK_THAT(Receive(client), Catch::Contains("expired"));
}

TEST_CASE("a client that does not finish in time gets an error and is closed", "[handle_socket]") {
  Daemon daemon({.path = "", .finish_timeout = milliseconds(500)});
  const auto registration = daemon.Expect(2);
  const UniqueFd client = Connect(daemon.socket->path());
  REQUIRE(Send(client, registration.token, 2, {client.get()}).ok());
  CHECK(Receive(client) == "error: 1 of 2 descriptors had arrived when the time was up");
  CHECK(Receive(client).empty());
  REQUIRE(Eventually([&] { return daemon.hangups == 1; }));
  CHECK(daemon.last_code == absl::StatusCode::kDeadlineExceeded);
}

TEST_CASE("a connection that lasts too long is reported once, and stays", "[handle_socket]") {
  Daemon daemon;
  std::atomic<int> overdue{0};
  const auto late = daemon.Expect(1, {.on_descriptors = nullptr,
                                      .lasts = milliseconds(20),
                                      .on_overdue = [&overdue] { ++overdue; }});
  const auto endless = daemon.Expect(1);
  const UniqueFd client = Connect(daemon.socket->path());
  REQUIRE(Send(client, late.token, 1, {client.get()}).ok());
  CHECK(Receive(client) == "ok");
  REQUIRE(Eventually([&] { return overdue == 1; }));
  // The socket's thread has looked at all deadlines again before it answers this client.
  const UniqueFd other = Connect(daemon.socket->path());
  REQUIRE(Send(other, endless.token, 1, {other.get()}).ok());
  CHECK(Receive(other) == "ok");
  CHECK(overdue == 1);
  CHECK(daemon.hangups == 0);
  REQUIRE(::shutdown(client.get(), SHUT_WR) == 0);
  REQUIRE(Eventually([&] { return daemon.hangups == 1; }));
}

TEST_CASE("a dropped registration is closed and not called back", "[handle_socket]") {
  Daemon daemon;
  const auto waiting = daemon.Expect(1);
  const auto live = daemon.Expect(1);
  const UniqueFd client = Connect(daemon.socket->path());
  REQUIRE(Send(client, live.token, 1, {client.get()}).ok());
  REQUIRE(Receive(client) == "ok");
  daemon.socket->Drop(live.id);
  CHECK(Receive(client).empty());
  daemon.socket->Drop(live.id);

  daemon.socket->Drop(waiting.id);
  const UniqueFd late = Connect(daemon.socket->path());
  REQUIRE(Send(late, waiting.token, 1, {late.get()}).ok());
  CHECK_THAT(Receive(late), Catch::StartsWith("error: "));
  CHECK(daemon.hangups == 0);
}

TEST_CASE("the client sees the end once the registration and the holder of its memory are gone",
          "[handle_socket]") {
  Daemon daemon;
  UniqueFd held;
  const auto registration = daemon.Expect(1, {.on_descriptors =
                                                  [&](std::vector<UniqueFd>, UniqueFd connection) {
                                                    held = std::move(connection);
                                                    return OkStatus();
                                                  },
                                              .on_hangup = nullptr});
  const UniqueFd client = Connect(daemon.socket->path());
  REQUIRE(Send(client, registration.token, 1, {client.get()}).ok());
  REQUIRE(Receive(client) == "ok");
  SECTION("the client ends it") {
    REQUIRE(::shutdown(client.get(), SHUT_WR) == 0);
    REQUIRE(Eventually([&] { return daemon.hangups == 1; }));
  }
  SECTION("the daemon ends it") { daemon.socket->Drop(registration.id); }
  // The socket's thread no longer holds the connection, since it serves the next one.
  const auto next = daemon.Expect(1);
  const UniqueFd other = Connect(daemon.socket->path());
  REQUIRE(Send(other, next.token, 1, {other.get()}).ok());
  REQUIRE(Receive(other) == "ok");
  pollfd ended = {.fd = client.get(), .events = POLLIN, .revents = 0};
  CHECK(::poll(&ended, 1, 0) == 0);
  held = UniqueFd();
  CHECK(Receive(client).empty());
}

TEST_CASE("a concurrent drop and hang-up call back at most once", "[handle_socket]") {
  constexpr size_t kRounds = 200;
  // The callback of a round may run after the round.
  std::array<std::atomic<int>, kRounds> hangups = {};
  std::optional<Daemon> made(std::in_place);
  Daemon& daemon = *made;
  for (std::atomic<int>& of_round : hangups) {
    const auto registration = daemon.Expect(
        1, {.on_descriptors = nullptr, .on_hangup = [&of_round](const Status&) { ++of_round; }});
    UniqueFd client = Connect(daemon.socket->path());
    REQUIRE(Send(client, registration.token, 1, {client.get()}).ok());
    REQUIRE(Receive(client) == "ok");
    std::thread closing([&client] { client.reset(); });
    daemon.socket->Drop(registration.id);
    closing.join();
  }
  made.reset();
  CHECK(std::all_of(hangups.begin(), hangups.end(), [](const auto& count) { return count <= 1; }));
}

}  // namespace
}  // namespace dws
