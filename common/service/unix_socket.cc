#include "common/service/unix_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/base/unique_fd.h"

namespace dws {
namespace {

constexpr mode_t kSocketMode = 0660;

}  // namespace

Status ClearSocketPath(const std::string& path, int type) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return InvalidArgumentError(
        "expected a socket path of 1 to {} bytes, found {} bytes: {}; choose a shorter folder",
        sizeof(address.sun_path) - 1, path.size(), path);
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);

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

Status RestrictSocket(const std::string& path) {
  if (::chmod(path.c_str(), kSocketMode) != 0) {
    return ErrnoError(errno, fmt::format("cannot set the mode of the socket {}", path));
  }
  return OkStatus();
}

}  // namespace dws
