// Socket files: what both sockets of a daemon do before they bind and after, whom they let in, and
// how another daemon connects and knows whose socket it is.
#pragma once

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

// What fits a socket address.
inline constexpr size_t kSocketPathBytesMax = 107;

// Makes `path` free for bind(2): removes a socket file that nobody listens on. OK when there is
// none. `type` is SOCK_STREAM or SOCK_SEQPACKET. INVALID_ARGUMENT: the path does not fit a socket
// address (107 bytes). FAILED_PRECONDITION: somebody listens on it, or it is something else than a
// socket.
Status ClearSocketPath(const std::string& path, int type);

// The process at the other end, when it connected; the kernel vouches for it.
struct UnixPeer {
  uid_t uid = 0;
  pid_t pid = 0;
};
// FAILED_PRECONDITION and others from errno: not a connected unix socket.
Result<UnixPeer> PeerOfSocket(int fd);

// Whether the other end of a connected socket has shut its side, or is gone: what the kernel knows
// now, of whatever was done there before this was called.
bool PeerHasShut(const UniqueFd& connection);

// The process behind a call that came through a UnixListener, from its context's peer(); nullopt
// for other calls.
std::optional<UnixPeer> PeerOfCall(const std::string& grpc_peer);

// Who may use the sockets, of those whom the file's mode lets in. Immutable.
class AllowedUsers {
 public:
  // Everybody whom the mode lets in.
  AllowedUsers() = default;
  // Root, this process's own user, and these.
  static AllowedUsers Only(std::vector<uid_t> uids);
  // The same, by name or number; an empty list is the first constructor's. INVALID_ARGUMENT: a name
  // that this system does not know.
  static Result<AllowedUsers> Parse(const std::vector<std::string>& users);

  // PERMISSION_DENIED, saying what to do.
  Status Check(const UnixPeer& peer) const;

  // Of `server`, which listens on the socket file `path` that we connected to: PERMISSION_DENIED,
  // saying what to do, unless it is of root, of this process's own user or of one of these. No mode
  // speaks for a server: whoever can write to the folder can take the path.
  Status CheckServer(const UnixPeer& server, std::string_view path) const;

 private:
  // Root, this process's own user, or one of those listed.
  bool Names(uid_t uid) const;

  std::optional<std::vector<uid_t>> uids_;
};

struct UnixConnection {
  UniqueFd fd;  // not blocking, close-on-exec
  UnixPeer peer;
};

// Connects to the socket file `path`; the peer is the process that listens on it. UNAVAILABLE:
// nobody listens there, now. PERMISSION_DENIED: this user may not connect. INVALID_ARGUMENT: the
// path does not fit.
Result<UnixConnection> ConnectUnix(const std::string& path);

// A listening socket file in somebody's epoll set. Threads: one.
class UnixAcceptor {
 public:
  // Mode 0660: the daemon's user and group. EPOLLIN of fd() in `epoll` says that a client waits.
  // Errors as ClearSocketPath's; UNAVAILABLE and others from errno.
  static Result<UnixAcceptor> Listen(const std::string& path, int type, const UniqueFd& epoll);

  int fd() const { return listener_.get(); }

  // The next client; nullopt when there is none. Without a free descriptor it logs so and leaves
  // clients waiting until Resume has been called at paused_until(): they would wake us at once,
  // again and again.
  std::optional<UnixConnection> Accept(TimePoint now);
  std::optional<TimePoint> paused_until() const { return paused_until_; }
  void Resume(TimePoint now);

 private:
  UnixAcceptor(std::string path, UniqueFd listener, int epoll)
      : path_(std::move(path)), listener_(std::move(listener)), epoll_(epoll) {}

  std::string path_;
  UniqueFd listener_;
  int epoll_ = -1;  // outlives it
  std::optional<TimePoint> paused_until_;
};

}  // namespace dws
