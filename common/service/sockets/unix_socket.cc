#include "common/service/sockets/unix_socket.h"

#include <poll.h>
#include <pwd.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <system_error>
#include <utility>

#include "common/base/log/log.h"

namespace dws {
namespace {

constexpr mode_t kSocketMode = 0660;
constexpr int kBacklog = 128;
constexpr std::chrono::milliseconds kAcceptPause{100};

static_assert(kSocketPathBytesMax == sizeof(sockaddr_un::sun_path) - 1);

Status CheckPathFits(const std::string& path) {
  if (!path.empty() && path.size() <= kSocketPathBytesMax) return OkStatus();
  return InvalidArgumentError(
      "expected a socket path of 1 to {} bytes, found {} bytes: {}; choose a shorter folder",
      kSocketPathBytesMax, path.size(), path);
}

// `path` must have passed CheckPathFits.
sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

Result<uid_t> ParseUser(const std::string& user) {
  uid_t uid = 0;
  const auto [end, error] = std::from_chars(user.data(), user.data() + user.size(), uid);
  if (error == std::errc() && end == user.data() + user.size()) return uid;
  passwd entry = {};
  passwd* found = nullptr;
  std::array<char, 16'384> strings;
  if (::getpwnam_r(user.c_str(), &entry, strings.data(), strings.size(), &found) != 0 ||
      found == nullptr) {
    return InvalidArgumentError("--allow-user: expected a user's name or number, found \"{}\"",
                                user);
  }
  return found->pw_uid;
}

}  // namespace

Status ClearSocketPath(const std::string& path, int type) {
  DWS_RETURN_IF_ERROR(CheckPathFits(path));
  const sockaddr_un address = AddressOf(path);

  struct stat found = {};
  if (::lstat(path.c_str(), &found) != 0) {
    if (errno == ENOENT) return OkStatus();
    return ErrnoError(errno, fmt::format("cannot look at the socket path {}", path));
  }
  if (!S_ISSOCK(found.st_mode)) {
    return FailedPreconditionError(
        "expected a socket or nothing at {}, found another kind of file; remove it or choose "
        "another path",
        path);
  }
  const UniqueFd probe(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid()) return ErrnoError(errno, "cannot make a socket");
  const int connected =
      ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  if (connected == 0 || errno != ECONNREFUSED) {
    return FailedPreconditionError(
        "the socket {} is in use by a running process; stop it or choose another path", path);
  }
  if (::unlink(path.c_str()) != 0) {
    return ErrnoError(errno, fmt::format("cannot remove the stale socket {}", path));
  }
  return OkStatus();
}

Result<UnixPeer> PeerOfSocket(int fd) {
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return ErrnoError(errno, "cannot tell who connected");
  }
  return UnixPeer{.uid = credentials.uid, .pid = credentials.pid};
}

bool PeerHasShut(const UniqueFd& connection) {
  pollfd events = {.fd = connection.get(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&events, 1, 0) != 0;  // an error counts as shut
}

std::optional<UnixPeer> PeerOfCall(const std::string& grpc_peer) {
  // gRPC gives this name to a connection that it got as a descriptor. The descriptor stays open
  // during the call.
  constexpr std::string_view kPrefix = "fd:";
  int fd = -1;
  const char* const end = grpc_peer.data() + grpc_peer.size();
  if (!grpc_peer.starts_with(kPrefix) ||
      std::from_chars(grpc_peer.data() + kPrefix.size(), end, fd).ptr != end) {
    return std::nullopt;
  }
  const Result<UnixPeer> peer = PeerOfSocket(fd);
  return peer.ok() ? std::optional(*peer) : std::nullopt;
}

AllowedUsers AllowedUsers::Only(std::vector<uid_t> uids) {
  AllowedUsers users;
  users.uids_ = std::move(uids);
  return users;
}

Result<AllowedUsers> AllowedUsers::Parse(const std::vector<std::string>& users) {
  if (users.empty()) return AllowedUsers();
  std::vector<uid_t> uids;
  for (const std::string& user : users) {
    DWS_ASSIGN_OR_RETURN(const uid_t uid, ParseUser(user));
    uids.push_back(uid);
  }
  return Only(std::move(uids));
}

bool AllowedUsers::Names(uid_t uid) const {
  return uid == 0 || uid == ::geteuid() ||
         (uids_.has_value() && std::find(uids_->begin(), uids_->end(), uid) != uids_->end());
}

Status AllowedUsers::Check(const UnixPeer& peer) const {
  if (!uids_.has_value() || Names(peer.uid)) return OkStatus();
  return MakeStatus(absl::StatusCode::kPermissionDenied,
                    fmt::format("uid {} may not use this daemon: run as uid {}, or allow the uid "
                                "with the daemon's --allow-user",
                                peer.uid, ::geteuid()));
}

Status AllowedUsers::CheckServer(const UnixPeer& server, std::string_view path) const {
  if (Names(server.uid)) return OkStatus();
  return MakeStatus(
      absl::StatusCode::kPermissionDenied,
      fmt::format("the socket {} is served by uid {}, expected root, uid {} (this daemon's own) or "
                  "a user of --allow-user: another user has taken the path; if the daemon there is "
                  "meant to run as uid {}, name that with --allow-user",
                  path, server.uid, ::geteuid(), server.uid));
}

Result<UnixConnection> ConnectUnix(const std::string& path, int type) {
  DWS_RETURN_IF_ERROR(CheckPathFits(path));
  UniqueFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoError(errno, "cannot make a socket");
  const sockaddr_un address = AddressOf(path);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno == EACCES || errno == EPERM) {
      return ErrnoError(errno, fmt::format("uid {} may not connect to the socket {} (is it in the "
                                           "group of the file?)",
                                           ::geteuid(), path));
    }
    // No daemon listens there, or its queue is full.
    return UnavailableError(
        "no process answers on the socket {}: {}; is the daemon with this --socket running?", path,
        std::generic_category().message(errno));
  }
  DWS_ASSIGN_OR_RETURN(const UnixPeer peer, PeerOfSocket(fd.get()));
  return UnixConnection{.fd = std::move(fd), .peer = peer};
}

Result<UnixAcceptor> UnixAcceptor::Listen(const std::string& path, int type,
                                          const UniqueFd& epoll) {
  DWS_RETURN_IF_ERROR(ClearSocketPath(path, type));
  const sockaddr_un address = AddressOf(path);
  UniqueFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoError(errno, "cannot make a socket");
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoError(errno, fmt::format("cannot bind the socket {}", path));
  }
  // The mode is set before listen, because nobody can connect until then.
  if (::chmod(path.c_str(), kSocketMode) != 0) {
    return ErrnoError(errno, fmt::format("cannot set the mode of the socket {}", path));
  }
  epoll_event event = {.events = EPOLLIN, .data = {.fd = fd.get()}};
  if (::listen(fd.get(), kBacklog) != 0 ||
      ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd.get(), &event) != 0) {
    return ErrnoError(errno, fmt::format("cannot listen on the socket {}", path));
  }
  return UnixAcceptor(path, std::move(fd), epoll.get());
}

std::optional<UnixConnection> UnixAcceptor::Accept(TimePoint now) {
  UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) {
    if (errno != EMFILE && errno != ENFILE) return std::nullopt;  // the client is already gone
    LogError(
        "out_of_descriptors",
        {{"path", path_}, {"reason", "no free descriptor for a new client; raise LimitNOFILE"}});
    epoll_event event = {.events = 0, .data = {.fd = listener_.get()}};
    if (::epoll_ctl(epoll_, EPOLL_CTL_MOD, listener_.get(), &event) == 0) {
      paused_until_ = now + kAcceptPause;
    }
    return std::nullopt;
  }
  const Result<UnixPeer> peer = PeerOfSocket(fd.get());
  if (!peer.ok()) return std::nullopt;
  return UnixConnection{.fd = std::move(fd), .peer = *peer};
}

void UnixAcceptor::Resume(TimePoint now) {
  if (!paused_until_.has_value() || now < *paused_until_) return;
  paused_until_.reset();
  epoll_event event = {.events = EPOLLIN, .data = {.fd = fd()}};
  static_cast<void>(::epoll_ctl(epoll_, EPOLL_CTL_MOD, fd(), &event));
}

}  // namespace dws
