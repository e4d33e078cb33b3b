// The mode is that of the file that is read, whatever its name stands for meanwhile. Opening a pipe
// does not wait for its writer.
#include "common/service/http/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/unique_fd.h"

namespace dws {

Result<std::string> ReadSecretFile(const std::string& path, std::string_view what,
                                   size_t size_bytes_max) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info = {};
  if (!file.valid() || ::fstat(file.get(), &info) != 0) {
    return ErrnoError(errno, fmt::format("the file of {}, {}", what, path));
  }
  if (!S_ISREG(info.st_mode)) {
    return FailedPreconditionError("expected a file with {} at {}, found no file", what, path);
  }
  if ((info.st_mode & S_IRWXO) != 0) {
    return FailedPreconditionError(
        "expected a file with {} that only its owner and group can read, found mode {:04o} on {}: "
        "chmod 0640 it, and change what is in it if others may have read it",
        what, info.st_mode & 07777, path);
  }
  std::string text(size_bytes_max + 1, '\0');
  const ssize_t size = ::read(file.get(), text.data(), text.size());
  if (size < 0) return ErrnoError(errno, fmt::format("the file of {}, {}", what, path));
  if (static_cast<size_t>(size) > size_bytes_max) {
    return FailedPreconditionError("expected {} of at most {} bytes in {}, found more", what,
                                   size_bytes_max, path);
  }
  text.resize(static_cast<size_t>(size));
  return text;
}

}  // namespace dws
