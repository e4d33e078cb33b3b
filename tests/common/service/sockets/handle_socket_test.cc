#include "common/service/sockets/handle_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/memory/host/host_region.h"
#include "tests/common/service/sockets/handle_socket_case.h"
#include "tests/fakes/eventually.h"

namespace dws {
namespace {

using std::chrono::milliseconds;

TEST_CASE("memory passed over the socket is the client's memory", "[handle_socket]") {
  Daemon daemon;
  Result<CreatedRegion> region = CreateHostRegion("weights", 4096);
  REQUIRE(region.ok());
  region->region.mutable_bytes()[5] = std::byte{77};
  HostRegion mapped;
  std::atomic<bool> done{false};
  const auto registration = daemon.Expect(
      1, {.on_descriptors = [&](std::vector<UniqueFd> descriptors, UniqueFd) -> Status {
            DWS_ASSIGN_OR_RETURN(
                mapped, HostRegion::Map(std::move(descriptors[0]), 4096, Access::kReadOnly));
            done = true;
            return OkStatus();
          },
          .on_hangup = nullptr});
  const UniqueFd read_only = ReopenReadOnly(region->fd).value();
  const UniqueFd client = Connect(daemon.socket->path());
  REQUIRE(Send(client, registration.token, 1, {read_only.get()}).ok());
  CHECK(Receive(client) == "ok");
  REQUIRE(done);
  CHECK(mapped.bytes()[5] == std::byte{77});
}

TEST_CASE("more descriptors than fit one message arrive in order", "[handle_socket]") {
  Daemon daemon;
  constexpr size_t kCount = 450;
  std::vector<ino_t> inodes;
  const auto registration =
      daemon.Expect(kCount, {.on_descriptors =
                                 [&](std::vector<UniqueFd> descriptors, UniqueFd) {
                                   for (const UniqueFd& fd : descriptors) {
                                     struct stat found = {};
                                     ::fstat(fd.get(), &found);
                                     inodes.push_back(found.st_ino);
                                     const int flags = ::fcntl(fd.get(), F_GETFD);
                                     if ((flags & FD_CLOEXEC) == 0)
                                       return InternalError("not close-on-exec");
                                   }
                                   return OkStatus();
                                 },
                             .on_hangup = nullptr});
  const UniqueFd first(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const UniqueFd second(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  std::vector<int> all(kCount, first.get());
  all[0] = all[211] = second.get();
  const UniqueFd client = Connect(daemon.socket->path());
  REQUIRE(Send(client, registration.token, kCount, {all.begin(), all.begin() + 200}).ok());
  REQUIRE(Send(client, registration.token, kCount, {all.begin() + 200, all.begin() + 400}).ok());
  REQUIRE(Send(client, registration.token, kCount, {all.begin() + 400, all.end()}).ok());
  REQUIRE(Receive(client) == "ok");
  REQUIRE(inodes.size() == kCount);
  for (size_t i = 1; i < kCount; ++i) CHECK((inodes[i] == inodes[0]) == (i == 211));
}

TEST_CASE("the death of the client is reported exactly once", "[handle_socket]") {
  Daemon daemon;
  const auto registration = daemon.Expect(1);
  // A process that dies without closing the connection itself.
  const pid_t child = ::fork();
  if (child == 0) {
    const UniqueFd client = Connect(daemon.socket->path());
    static_cast<void>(Send(client, registration.token, 1, {0}));
    static_cast<void>(Receive(client));
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(Eventually([&] { return daemon.hangups == 1; }));
  CHECK(daemon.delivered == 1);
  CHECK(daemon.last_code == absl::StatusCode::kCancelled);
  // When a second client is served, the daemon's thread has run another round of its loop.
  const auto next = daemon.Expect(1);
  const UniqueFd client = Connect(daemon.socket->path());
  REQUIRE(Send(client, next.token, 1, {client.get()}).ok());
  REQUIRE(Receive(client) == "ok");
  CHECK(daemon.hangups == 1);
}

TEST_CASE("a client that dies before its last descriptor ends its registration",
          "[handle_socket]") {
  Daemon daemon;
  const auto registration = daemon.Expect(2);
  {
    const UniqueFd client = Connect(daemon.socket->path());
    REQUIRE(Send(client, registration.token, 2, {STDERR_FILENO}).ok());
  }
  REQUIRE(Eventually([&] { return daemon.hangups == 1; }));
  CHECK(daemon.delivered == 0);
  CHECK(daemon.last_code == absl::StatusCode::kCancelled);
}

TEST_CASE("the death of the daemon hangs up on the client", "[handle_socket]") {
  auto daemon = std::make_unique<Daemon>();
  const std::string path = daemon->socket->path();
  const auto registration = daemon->Expect(1);
  const UniqueFd client = Connect(path);
  REQUIRE(Send(client, registration.token, 1, {client.get()}).ok());
  REQUIRE(Receive(client) == "ok");
  daemon->socket.reset();
  CHECK(Receive(client).empty());
  CHECK(daemon->hangups == 0);
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("a token works once", "[handle_socket]") {
  Daemon daemon;
  const auto registration = daemon.Expect(1);
  const UniqueFd first = Connect(daemon.socket->path());
  REQUIRE(Send(first, registration.token, 1, {first.get()}).ok());
  REQUIRE(Receive(first) == "ok");
  const UniqueFd second = Connect(daemon.socket->path());
  REQUIRE(Send(second, registration.token, 1, {second.get()}).ok());
  CHECK_THAT(Receive(second), Catch::StartsWith("error: the token is unknown, used or expired"));
  CHECK(daemon.hangups == 0);
  const auto third = daemon.Expect(1);
  CHECK(third.token != registration.token);
}

TEST_CASE("malformed messages are answered with an error and end the registration",
          "[handle_socket]") {
  Daemon daemon;
  const auto registration = daemon.Expect(2);
  const UniqueFd client = Connect(daemon.socket->path());
  const int fd = client.get();
  std::string words;
  bool ends = true;
  SECTION("an unknown token") {
    REQUIRE(Send(client, HandleToken{}, 2, {fd}).ok());
    words = "unknown";
    ends = false;  // no registration has it
  }
  SECTION("a short message") {
    REQUIRE(SendDescriptorMessage(client, AsBytes("hello"), {}).ok());
    words = "expected messages of 20 bytes";
    ends = false;
  }
  SECTION("a long message") {
    REQUIRE(SendDescriptorMessage(client, std::vector<std::byte>(21), {}).ok());
    words = "at most 20 bytes";
    ends = false;
  }
  SECTION("another count than was registered") {
    REQUIRE(Send(client, registration.token, 3, {fd}).ok());
    words = "expected 2 descriptors";
  }
  SECTION("no descriptor in a message") {
    REQUIRE(Send(client, registration.token, 2, {}).ok());
    words = "expected 1 to 2 more";
  }
  SECTION("too many descriptors") {
    REQUIRE(Send(client, registration.token, 2, {fd, fd, fd}).ok());
    words = "found 3";
  }
  SECTION("another token in the second message") {
    REQUIRE(Send(client, registration.token, 2, {fd}).ok());
    REQUIRE(Send(client, HandleToken{}, 2, {fd}).ok());
    words = "token changed";
  }
  SECTION("another message after ok") {
    REQUIRE(Send(client, registration.token, 2, {fd, fd}).ok());
    REQUIRE(Receive(client) == "ok");
    REQUIRE(Send(client, registration.token, 2, {fd}).ok());
    words = "nothing more";
  }
  const std::string answer = Receive(client);
  CHECK_THAT(answer, Catch::StartsWith("error: ") && Catch::Contains(words));
  if (ends) REQUIRE(Eventually([&] { return daemon.hangups == 1; }));
  CHECK(daemon.hangups == (ends ? 1 : 0));
  if (ends) CHECK(daemon.last_code == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("later messages of a refused client are discarded without leaking descriptors",
          "[handle_socket]") {
  Daemon daemon;
  const auto registration = daemon.Expect(400);
  const UniqueFd client = Connect(daemon.socket->path());
  const size_t before = OpenDescriptors();
  const std::vector<int> many(200, client.get());
  REQUIRE(Send(client, registration.token, 399, many).ok());
  for (int i = 0; i < 5; ++i) REQUIRE(Send(client, registration.token, 399, many).ok());
  CHECK_THAT(Receive(client), Catch::Contains("expected 400 descriptors"));
  // One more for the daemon's end of the connection.
  CHECK(Eventually([&] { return OpenDescriptors() <= before + 1; }));
}

TEST_CASE("the client gets the daemon's error message", "[handle_socket]") {
  Daemon daemon;
  const auto registration =
      daemon.Expect(1, {.on_descriptors =
                            [](std::vector<UniqueFd>, UniqueFd) {
                              return FailedPreconditionError("region 0 of tensor w is too small");
                            },
                        .on_hangup = nullptr});
  const UniqueFd client = Connect(daemon.socket->path());
  REQUIRE(Send(client, registration.token, 1, {client.get()}).ok());
  CHECK(Receive(client) == "error: region 0 of tensor w is too small");
  REQUIRE(Eventually([&] { return daemon.hangups == 1; }));
  CHECK(daemon.last_code == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("callbacks may call the socket that calls them", "[handle_socket]") {
  Daemon daemon;
  HandleSocket::Registration registration;
  std::atomic<bool> ready{false};
  registration = daemon.Expect(1, {.on_descriptors =
                                       [&](std::vector<UniqueFd>, UniqueFd) {
                                         while (!ready) std::this_thread::yield();
                                         daemon.Expect(1);
                                         daemon.socket->Drop(registration.id);
                                         return OkStatus();
                                       },
                                   .on_hangup = nullptr});
  ready = true;
  const UniqueFd client = Connect(daemon.socket->path());
  REQUIRE(Send(client, registration.token, 1, {client.get()}).ok());
  CHECK(Receive(client) == "ok");
  CHECK(Receive(client).empty());
}

TEST_CASE("clients beyond the limit are refused with a message", "[handle_socket]") {
  Daemon daemon({.path = "", .connections_max = 2});
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 2; ++i) {
    const auto registration = daemon.Expect(1);
    clients.push_back(Connect(daemon.socket->path()));
    REQUIRE(Send(clients.back(), registration.token, 1, {clients.back().get()}).ok());
    REQUIRE(Receive(clients.back()) == "ok");
  }
  const UniqueFd third = Connect(daemon.socket->path());
  CHECK_THAT(Receive(third), Catch::Contains("the limit is 2"));
  clients.pop_back();
  REQUIRE(Eventually([&] { return daemon.hangups == 1; }));
  const auto registration = daemon.Expect(1);
  const UniqueFd fourth = Connect(daemon.socket->path());
  REQUIRE(Send(fourth, registration.token, 1, {fourth.get()}).ok());
  CHECK(Receive(fourth) == "ok");
}

TEST_CASE("a token bound to a user is refused for other users", "[handle_socket]") {
  Daemon daemon;
  const auto registration = daemon.Expect(
      1,
      {.peer = UnixPeer{.uid = ::geteuid() + 1}, .on_descriptors = nullptr, .on_hangup = nullptr});
  const UniqueFd client = Connect(daemon.socket->path());
  REQUIRE(Send(client, registration.token, 1, {client.get()}).ok());
  CHECK_THAT(Receive(client), Catch::Contains(fmt::format("found uid {}", ::geteuid())));
  CHECK(daemon.hangups == 0);
}

// Connects as uid nobody; true when the daemon's first message is an error about the uid, nullopt
// when this process cannot become another user.
std::optional<bool> RefusedAsNobody(const std::string& path) {
  constexpr uid_t kNobody = 65534;
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresuid(kNobody, kNobody, kNobody) != 0) ::_exit(3);
    const UniqueFd client = Connect(path);
    if (!client.valid()) ::_exit(2);
    // An allowed client gets another error, because this is not a registration.
    const std::vector<std::byte> junk(3);
    static_cast<void>(SendDescriptorMessage(client, junk, {}));
    ::_exit(Receive(client).starts_with("error: uid 65534") ? 1 : 0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 3) return std::nullopt;
  REQUIRE(WEXITSTATUS(status) <= 1);
  return WEXITSTATUS(status) == 1;
}

TEST_CASE("another user is refused unless the daemon allows it", "[handle_socket]") {
  for (const bool allowed : {false, true}) {
    Daemon daemon({.path = "",
                   .allowed = AllowedUsers::Only(allowed ? std::vector<uid_t>{65534}
                                                         : std::vector<uid_t>{})});
    // Without this the file permissions refuse the client first.
    REQUIRE(::chmod(daemon.folder.path().c_str(), 0755) == 0);
    REQUIRE(::chmod(daemon.socket->path().c_str(), 0666) == 0);
    const std::optional<bool> refused = RefusedAsNobody(daemon.socket->path());
    if (!refused.has_value()) {
      WARN("skipped: this process cannot become another user");
      return;
    }
    CHECK(*refused == !allowed);
  }
}

TEST_CASE("a stale socket file is replaced, a live one is not", "[handle_socket]") {
  Daemon daemon;
  const std::string path = daemon.socket->path();
  struct stat found = {};
  REQUIRE(::stat(path.c_str(), &found) == 0);
  CHECK((found.st_mode & 0777) == 0660);

  const auto second = HandleSocket::Listen({.path = path});
  CHECK(absl::IsFailedPrecondition(second.status()));
  CHECK(Connect(path).valid());

  // The socket file that a killed daemon leaves.
  const std::string stale = daemon.folder.File("stale");
  {
    const UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, stale.c_str(), stale.size() + 1);
    REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  }
  CHECK(HandleSocket::Listen({.path = stale}).ok());
}

TEST_CASE("impossible expectations are refused", "[handle_socket]") {
  Daemon daemon;
  const auto too_many = daemon.socket->Expect(
      {.descriptor_count = limits::kDescriptorsMax + 1,
       .on_descriptors = [](std::vector<UniqueFd>, UniqueFd) { return OkStatus(); },
       .on_hangup = nullptr});
  CHECK(absl::IsInvalidArgument(too_many.status()));
}

}  // namespace
}  // namespace dws
