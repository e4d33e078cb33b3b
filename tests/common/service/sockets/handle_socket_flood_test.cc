// Clients that start and never finish: they are bounded and do not shut out others.
#include <catch2/catch.hpp>
#include <chrono>

#include "common/service/sockets/handle_socket.h"
#include "tests/common/service/sockets/handle_socket_case.h"
#include "tests/fakes/eventually.h"

namespace dws {
namespace {

HandleSocket::Expectation Of(pid_t pid, uid_t uid = ::geteuid()) {
  return {
      .peer = UnixPeer{.uid = uid, .pid = pid}, .on_descriptors = nullptr, .on_hangup = nullptr};
}

std::string HandOver(const Daemon& daemon, const HandleToken& token) {
  const UniqueFd client = Connect(daemon.socket->path());
  REQUIRE(Send(client, token, 1, {client.get()}).ok());
  return Receive(client);
}

TEST_CASE("a process with too many registrations loses its own oldest ones", "[handle_socket]") {
  Daemon daemon;
  const auto good = daemon.Expect(1, Of(1));
  const auto first = daemon.Expect(1, Of(2));
  for (size_t i = 0; i < 3 * limits::kHandleExpectationsMax; ++i) daemon.Expect(1, Of(2));
  CHECK(daemon.last_code == absl::StatusCode::kResourceExhausted);
  CHECK(static_cast<size_t>(daemon.hangups) ==
        3 * limits::kHandleExpectationsMax + 1 - limits::kHandleExpectationsPerProcessMax);
  CHECK_THAT(HandOver(daemon, first.token), Catch::Contains("register again"));
  CHECK(HandOver(daemon, good.token) == "ok");
}

TEST_CASE("many processes of one user do not shut out others", "[handle_socket]") {
  Daemon daemon;
  const auto other_user = daemon.Expect(1, Of(1));
  for (size_t i = 0; i < 2 * limits::kHandleExpectationsMax; ++i) {
    daemon.Expect(1, Of(static_cast<pid_t>(100 + i), ::geteuid() + 1));
  }
  CHECK(static_cast<size_t>(daemon.hangups) == limits::kHandleExpectationsMax + 1);
  CHECK(HandOver(daemon, other_user.token) == "ok");
  // A registration of any other process is still accepted meanwhile.
  const auto late = daemon.Expect(1, Of(2));
  for (int i = 0; i < 100; ++i) daemon.Expect(1, Of(5000 + i, ::geteuid() + 1));
  CHECK(HandOver(daemon, late.token) == "ok");
}

TEST_CASE("connections that never finish make room for one that does", "[handle_socket]") {
  Daemon daemon({.finish_timeout = std::chrono::hours(1), .connections_max = 4});
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(Connect(daemon.socket->path()));
  const auto registration = daemon.Expect(1);
  CHECK(HandOver(daemon, registration.token) == "ok");
  CHECK_THAT(Receive(silent.front()), Catch::Contains("4 clients are connected"));
  // Connections that have finished are kept.
  const auto second = daemon.Expect(1);
  const UniqueFd client = Connect(daemon.socket->path());
  REQUIRE(Send(client, second.token, 1, {client.get()}).ok());
  REQUIRE(Receive(client) == "ok");
  REQUIRE(Eventually([&] { return daemon.hangups == 1; }));  // of the first, which has hung up
  for (int i = 0; i < 40; ++i) silent.push_back(Connect(daemon.socket->path()));
  CHECK(HandOver(daemon, daemon.Expect(1).token) == "ok");
  REQUIRE(Eventually([&] { return daemon.hangups == 2; }));
  CHECK(daemon.delivered == 3);
}

}  // namespace
}  // namespace dws
