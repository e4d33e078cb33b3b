#include "tools/dwsctl/base/byte_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace dws::dwsctl {

Result<ByteFile> ByteFile::Open(const std::string& path) {
  // O_NONBLOCK, because opening a FIFO would wait for a writer.
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file.valid() || fstat(file.get(), &status) != 0) return ErrnoError(errno, path);
  if (!S_ISREG(status.st_mode)) return InvalidArgumentError("{} is not a regular file", path);
  return ByteFile(std::move(file), static_cast<uint64_t>(status.st_size), path);
}

Result<std::vector<std::byte>> ByteFile::Read(uint64_t offset, uint64_t length) const {
  const uint64_t begin = std::min(offset, size_bytes_);
  std::vector<std::byte> bytes(std::min(length, size_bytes_ - begin));
  size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got = pread(file_.get(), bytes.data() + filled, bytes.size() - filled,
                              static_cast<off_t>(begin + filled));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError(errno, path_);
    if (got == 0) break;  // the file has become shorter since Open
    filled += static_cast<size_t>(got);
  }
  bytes.resize(filled);
  return bytes;
}

}  // namespace dws::dwsctl
