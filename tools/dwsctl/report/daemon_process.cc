// Files of /proc have no size, so they are read until their end.
#include "tools/dwsctl/report/daemon_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/base/unique_fd.h"

namespace dws::dwsctl {
namespace {

Result<UniqueFd> OpenToRead(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return ErrnoError(errno, path);
  return file;
}

Result<std::string> ReadUpTo(const UniqueFd& file, const std::string& path, size_t bytes_max) {
  std::string text(bytes_max, '\0');
  size_t size = 0;
  while (size < bytes_max) {
    const ssize_t count = ::read(file.get(), text.data() + size, bytes_max - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoError(errno, path);
    if (count == 0) break;
    size += static_cast<size_t>(count);
  }
  text.resize(size);
  return text;
}

}  // namespace

Result<pid_t> ListenerOf(const std::string& socket) {
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  if (socket.size() >= sizeof address.sun_path) {
    return InvalidArgumentError("{}: a socket's path has at most {} bytes", socket,
                                sizeof address.sun_path - 1);
  }
  std::memcpy(address.sun_path, socket.data(), socket.size());
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoError(errno, "cannot make a socket");
  const auto* const generic = reinterpret_cast<const sockaddr*>(&address);
  if (::connect(fd.get(), generic, sizeof address) != 0) {
    return UnavailableError("{}: {}", socket, Message(ErrnoError(errno, "connect")));
  }
  ucred peer = {};
  socklen_t size = sizeof peer;
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return ErrnoError(errno, socket);
  }
  if (peer.pid <= 0) {
    return UnavailableError(
        "{}: its process is not visible from here, as in another container: run dwsctl in its "
        "container, or on the host",
        socket);
  }
  return peer.pid;
}

Result<std::string> ReadPseudoFile(const std::string& path, size_t bytes_max) {
  DWS_ASSIGN_OR_RETURN(const UniqueFd file, OpenToRead(path));
  return ReadUpTo(file, path, bytes_max);
}

Result<std::string> ReadTail(const std::string& path, size_t bytes_max) {
  DWS_ASSIGN_OR_RETURN(const UniqueFd file, OpenToRead(path));
  struct stat what = {};
  if (::fstat(file.get(), &what) != 0) return ErrnoError(errno, path);
  if (!S_ISREG(what.st_mode)) return FailedPreconditionError("{} is no regular file", path);
  const auto size = static_cast<uint64_t>(what.st_size);
  const bool whole = size <= bytes_max;
  if (!whole && ::lseek(file.get(), static_cast<off_t>(size - bytes_max), SEEK_SET) < 0) {
    return ErrnoError(errno, path);
  }
  DWS_ASSIGN_OR_RETURN(std::string text, ReadUpTo(file, path, bytes_max));
  if (const size_t line = text.find('\n'); !whole && line != std::string::npos) {
    text.erase(0, line + 1);
  }
  return text;
}

std::vector<std::string> SplitAtZeros(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\0'), text.size());
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::string UnitOf(std::string_view cgroup) {
  const size_t line = cgroup.find_last_not_of('\n');
  if (line == std::string_view::npos) return "";
  cgroup = cgroup.substr(0, line + 1);
  const std::string_view unit = cgroup.substr(cgroup.rfind('/') + 1);
  const bool plain = std::ranges::all_of(unit, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("@._:-\\").find(c) != std::string_view::npos;
  });
  const bool ours = unit.starts_with("dws-") && unit.ends_with(".service");
  return plain && ours ? std::string(unit) : "";
}

}  // namespace dws::dwsctl
