// Socket files: how a daemon's two sockets bind and accept, which users they admit, and how another
// daemon connects and checks who owns the socket.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace dws {

// The longest path that fits into a socket address.
inline constexpr size_t kSocketPathBytesMax = 107;

// Makes `path` free for bind(2): removes a socket file that no process listens on. OK when there is
// none. `type` is SOCK_STREAM or SOCK_SEQPACKET. INVALID_ARGUMENT: the path does not fit into a
// socket address (107 bytes). FAILED_PRECONDITION: a process listens on it, or the file is not a
// socket.
Status ClearSocketPath(const std::string& path, int type);

// The process at the other end at the time it connected, as reported by the kernel.
struct UnixPeer {
  uid_t uid = 0;
  pid_t pid = 0;
};
// FAILED_PRECONDITION and others from errno: not a connected unix socket.
Result<UnixPeer> PeerOfSocket(int fd);

// Returns whether the other end of a connected socket has shut its side or is gone. It asks the
// kernel, so it sees everything that happened there before this call.
bool PeerHasShut(const UniqueFd& connection);

// The process that made a call through a UnixListener; `grpc_peer` is the context's peer(). nullopt
// for other calls.
std::optional<UnixPeer> PeerOfCall(const std::string& grpc_peer);

// The users who may use the sockets, among those whom the file's mode admits. Immutable.
class AllowedUsers {
 public:
  // Admits everybody whom the mode admits.
  AllowedUsers() = default;
  // Root, the user of this process, and these users.
  static AllowedUsers Only(std::vector<uid_t> uids);
  // Admits these users, by name or number. An empty list means the same as the default constructor.
  // INVALID_ARGUMENT: a name that this system does not know.
  static Result<AllowedUsers> Parse(const std::vector<std::string>& users);

  // PERMISSION_DENIED: the user is not admitted; the message says what to do.
  Status Check(const UnixPeer& peer) const;

  // Checks `server`, which listens on the socket file `path` that we connected to.
  // PERMISSION_DENIED: its user is not root, the user of this process or one of the admitted users;
  // the message says what to do. The file's mode proves nothing about a server: anybody who can
  // write to the folder can create the path.
  Status CheckServer(const UnixPeer& server, std::string_view path) const;

 private:
  // True for root, the user of this process and the listed users.
  bool Names(uid_t uid) const;

  std::optional<std::vector<uid_t>> uids_;
};

// One end of a connection, and the process at the other end.
struct UnixConnection {
  UniqueFd fd;  // not blocking, close-on-exec
  UnixPeer peer;
};

// Connects to the socket file `path`, of `type` SOCK_STREAM or SOCK_SEQPACKET; the peer is the
// process that listens on it. UNAVAILABLE: no process listens there now. PERMISSION_DENIED: this
// user may not connect. INVALID_ARGUMENT: the path is too long.
Result<UnixConnection> ConnectUnix(const std::string& path, int type = SOCK_STREAM);

// A listening socket file in the caller's epoll set, which must outlive it. Threads: one.
class UnixAcceptor {
 public:
  // Mode 0660: the daemon's user and group. EPOLLIN of fd() in `epoll` means that a client waits.
  // Errors as ClearSocketPath; UNAVAILABLE and others from errno.
  static Result<UnixAcceptor> Listen(const std::string& path, int type, const UniqueFd& epoll);

  int fd() const { return listener_.get(); }

  // Returns the next client; nullopt: there is none. If no descriptor is free, it logs that and
  // ignores waiting clients until the caller calls Resume at paused_until(). Otherwise they would
  // wake the thread in a busy loop.
  std::optional<UnixConnection> Accept(TimePoint now);
  std::optional<TimePoint> paused_until() const { return paused_until_; }
  void Resume(TimePoint now);

 private:
  UnixAcceptor(std::string path, UniqueFd listener, int epoll)
      : path_(std::move(path)), listener_(std::move(listener)), epoll_(epoll) {}

  std::string path_;
  UniqueFd listener_;
  int epoll_ = -1;  // must outlive it
  std::optional<TimePoint> paused_until_;
};

}  // namespace dws
