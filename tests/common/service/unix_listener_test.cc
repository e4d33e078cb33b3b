#include "common/service/sockets/unix_listener.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/threads/mutex.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/temp_folder.h"

namespace dws {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uid_t kNobody = 65534;

UniqueFd Connect(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return {};
  const timeval timeout = {.tv_sec = 20, .tv_usec = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  return fd;
}

bool Say(const UniqueFd& fd) { return ::send(fd.get(), "hello", 5, MSG_NOSIGNAL) == 5; }

// Waits until the other end hangs up.
bool Ends(const UniqueFd& fd) {
  char byte = 0;
  const ssize_t size = ::recv(fd.get(), &byte, 1, 0);
  return size == 0 || (size < 0 && errno == ECONNRESET);
}

// A listener that keeps the connections it is given.
class Server {
 public:
  explicit Server(UnixListener::Options options = {}) {
    options.path = folder.File("sock");
    options.on_connection = [this](UniqueFd fd) {
      MutexLock lock(mutex_);
      taken_.push_back(std::move(fd));
    };
    auto made = UnixListener::Listen(std::move(options));
    REQUIRE(made.ok());
    listener = *std::move(made);
  }
  ~Server() { listener.reset(); }

  size_t taken() {
    MutexLock lock(mutex_);
    return taken_.size();
  }
  UniqueFd Take() {
    MutexLock lock(mutex_);
    UniqueFd fd = std::move(taken_.back());
    taken_.pop_back();
    return fd;
  }
  std::string path() const { return folder.File("sock"); }

  TempFolder folder;
  std::unique_ptr<UnixListener> listener;

 private:
  Mutex mutex_;
  std::vector<UniqueFd> taken_ GUARDED_BY(mutex_);
};

TEST_CASE("a client is handed over once it sends and its bytes are kept", "[unix_listener]") {
  Server server;
  const UniqueFd client = Connect(server.path());
  REQUIRE(Say(client));
  REQUIRE(Eventually([&] { return server.taken() == 1; }));
  const UniqueFd served = server.Take();
  char text[10];
  CHECK(::recv(served.get(), text, sizeof(text), MSG_DONTWAIT) == 5);
  CHECK(Eventually([&] { return server.listener->connection_count() == 1; }));
  const Result<UnixPeer> peer = PeerOfSocket(served.get());
  REQUIRE(peer.ok());
  CHECK(peer->uid == ::geteuid());
  CHECK(peer->pid == ::getpid());
}

TEST_CASE("the end of a connection is noticed whichever side ends it", "[unix_listener]") {
  Server server;
  for (const bool by_client : {true, false}) {
    UniqueFd client = Connect(server.path());
    REQUIRE(Say(client));
    REQUIRE(Eventually([&] { return server.taken() == 1; }));
    UniqueFd served = server.Take();
    REQUIRE(Eventually([&] { return server.listener->connection_count() == 1; }));
    if (by_client) {
      client.reset();
    } else {
      ::shutdown(served.get(), SHUT_RDWR);
      served.reset();
      CHECK(Ends(client));
    }
    CHECK(Eventually([&] { return server.listener->connection_count() == 0; }));
  }
}

TEST_CASE("a client that sends nothing is disconnected", "[unix_listener]") {
  Server server({.speak_timeout = milliseconds(30)});
  const UniqueFd client = Connect(server.path());
  CHECK(Ends(client));
  CHECK(server.taken() == 0);
  CHECK(Eventually([&] { return server.listener->connection_count() == 0; }));
}

TEST_CASE("the first bytes may come in pieces but must come in time", "[unix_listener]") {
  Server patient({.first_bytes = 12});
  const UniqueFd client = Connect(patient.path());
  REQUIRE(Say(client));
  REQUIRE(Say(client));
  REQUIRE(Eventually([&] { return patient.listener->connection_count() == 1; }));
  CHECK(patient.taken() == 0);
  REQUIRE(Say(client));
  REQUIRE(Eventually([&] { return patient.taken() == 1; }));
  char text[20];
  CHECK(::recv(patient.Take().get(), text, sizeof(text), MSG_DONTWAIT) == 15);

  Server strict({.first_bytes = 12, .speak_timeout = milliseconds(500)});
  const UniqueFd slow = Connect(strict.path());
  REQUIRE(Say(slow));
  CHECK(Ends(slow));
  CHECK(strict.taken() == 0);
}

TEST_CASE("clients beyond the limit are disconnected until others leave", "[unix_listener]") {
  Server server({.connections_max = 2});
  UniqueFd first = Connect(server.path());
  const UniqueFd second = Connect(server.path());
  REQUIRE(Say(first));  // the other one is silent and counts too
  REQUIRE(Eventually([&] { return server.taken() == 1; }));
  REQUIRE(Eventually([&] { return server.listener->connection_count() == 2; }));
  const UniqueFd third = Connect(server.path());
  CHECK(Ends(third));
  first.reset();
  REQUIRE(Eventually([&] { return server.listener->connection_count() == 1; }));
  const UniqueFd fourth = Connect(server.path());
  REQUIRE(Say(fourth));
  CHECK(Eventually([&] { return server.taken() == 2; }));
}

TEST_CASE("stopping ends the connections handed over and removes the socket file",
          "[unix_listener]") {
  Server server;
  const UniqueFd spoken = Connect(server.path());
  const UniqueFd silent = Connect(server.path());
  REQUIRE(Say(spoken));
  REQUIRE(Eventually([&] { return server.taken() == 1; }));
  server.listener->StopAccepting();
  CHECK_FALSE(Connect(server.path()).valid());
  CHECK(Say(spoken));  // is still connected
  server.listener->Stop();
  CHECK(Ends(silent));
  CHECK(Ends(spoken));
  struct stat found = {};
  CHECK(::stat(server.path().c_str(), &found) != 0);
}

TEST_CASE("without free descriptors clients wait until there are some", "[unix_listener]") {
  Server server;
  rlimit before = {};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const UniqueFd client = Connect(server.path());
  REQUIRE(Say(client));
  REQUIRE(Eventually([&] { return server.taken() == 1; }));
  const UniqueFd late(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, server.path().c_str(), server.path().size() + 1);
  const rlimit none = {.rlim_cur = static_cast<rlim_t>(late.get()), .rlim_max = before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const bool connected =
      ::connect(late.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  const bool said = Say(late);
  const bool taken = Eventually([&] { return server.taken() > 1; }, seconds(1));
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(connected);
  CHECK(said);
  CHECK_FALSE(taken);
  CHECK(Eventually([&] { return server.taken() == 2; }));
}

// True when the daemon disconnects uid nobody within `patience`; nullopt when this process cannot
// become nobody.
std::optional<bool> RefusedAsNobody(const std::string& path, seconds patience) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresuid(kNobody, kNobody, kNobody) != 0) ::_exit(3);
    const UniqueFd client = Connect(path);
    if (!client.valid()) ::_exit(2);
    char byte = 0;
    static_cast<void>(Say(client));
    const timeval timeout = {.tv_sec = patience.count(), .tv_usec = 0};
    ::setsockopt(client.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    const ssize_t size = ::recv(client.get(), &byte, 1, 0);
    ::_exit(size == 0 || errno == ECONNRESET || errno == EPIPE ? 1 : 0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 3) return std::nullopt;
  REQUIRE(WEXITSTATUS(status) <= 1);
  return WEXITSTATUS(status) == 1;
}

TEST_CASE("users that are not on the list are disconnected", "[unix_listener]") {
  for (const bool allowed : {false, true}) {
    Server server({.allowed = AllowedUsers::Only(allowed ? std::vector<uid_t>{kNobody}
                                                         : std::vector<uid_t>{})});
    REQUIRE(::chmod(server.folder.path().c_str(), 0755) == 0);
    REQUIRE(::chmod(server.path().c_str(), 0666) == 0);
    const std::optional<bool> refused = RefusedAsNobody(server.path(), seconds(allowed ? 1 : 20));
    if (!refused.has_value()) {
      WARN("skipped: this process cannot become another user");
      return;
    }
    CHECK(*refused == !allowed);
    CHECK(Eventually([&] { return server.taken() == (allowed ? 1U : 0U); }));
  }
}

TEST_CASE("users are given by name or by number", "[unix_listener]") {
  const auto users = AllowedUsers::Parse({"nobody", "1234"});
  REQUIRE(users.ok());
  for (const uid_t uid : {uid_t{0}, ::geteuid(), kNobody, uid_t{1234}}) {
    CHECK(users->Check({.uid = uid, .pid = 1}).ok());
  }
  const Status refused = users->Check({.uid = 4321, .pid = 1});
  CHECK(refused.code() == absl::StatusCode::kPermissionDenied);
  CHECK_THAT(std::string(Message(refused)),
             Catch::Contains("4321") && Catch::Contains("--allow-user"));
  CHECK(AllowedUsers::Parse({})->Check({.uid = 4321, .pid = 1}).ok());
  const Status unknown = AllowedUsers::Parse({"no-such-user"}).status();
  CHECK_THAT(std::string(Message(unknown)), Catch::Contains("\"no-such-user\""));
}

}  // namespace
}  // namespace dws
