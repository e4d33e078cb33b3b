#include "common/base/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "common/base/failpoint.h"
#include "common/base/unique_fd.h"

namespace dws {
namespace {

constexpr mode_t kFileMode = 0640;
constexpr mode_t kFolderMode = 0750;
constexpr int kPipeWaitMilliseconds = 3000;

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Result<UniqueFd> OpenPath(const std::string& path, int flags, std::string_view what) {
  int fd;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, kFileMode);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return ErrnoError(errno, fmt::format("cannot {} {}", what, path));
  return UniqueFd(fd);
}

Status WriteAll(const UniqueFd& fd, ByteSpan bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd.get(), bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return ErrnoError(errno, fmt::format("cannot write {} bytes to {}", bytes.size(), path));
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return OkStatus();
}

Status SyncFd(const UniqueFd& fd, const std::string& path) {
  if (::fsync(fd.get()) != 0) return ErrnoError(errno, fmt::format("cannot sync {}", path));
  return OkStatus();
}

// A created or renamed name is durable only after its folder is synced.
Status SyncFolder(const std::string& folder) {
  DWS_ASSIGN_OR_RETURN(const UniqueFd fd,
                       OpenPath(folder, O_RDONLY | O_DIRECTORY, "open the folder"));
  return SyncFd(fd, folder);
}

// Waits until there is something to read, or until a pipe's writers have closed it.
Status AwaitBytes(const UniqueFd& fd, const std::string& path) {
  struct pollfd waiting = {.fd = fd.get(), .events = POLLIN, .revents = 0};
  const int ready = ::poll(&waiting, 1, kPipeWaitMilliseconds);
  if (ready > 0 || (ready < 0 && errno == EINTR)) return OkStatus();
  return UnavailableError("{} is a pipe, and no data arrived on it in {} s", path,
                          kPipeWaitMilliseconds / 1000);
}

bool IsPipe(const UniqueFd& fd) {
  struct stat found = {};
  return ::fstat(fd.get(), &found) == 0 && S_ISFIFO(found.st_mode);
}

class PosixAppendFile final : public AppendFile {
 public:
  PosixAppendFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  Status Append(ByteSpan bytes) override { return WriteAll(fd_, bytes, path_); }
  Status Sync() override { return SyncFd(fd_, path_); }

 private:
  const UniqueFd fd_;
  const std::string path_;
};

class PosixReadableFile final : public ReadableFile {
 public:
  PosixReadableFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  Result<size_t> ReadAt(uint64_t offset, MutableByteSpan bytes) override {
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t count = ::pread(fd_.get(), bytes.data() + done, bytes.size() - done,
                                    static_cast<off_t>(offset + done));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return ErrnoError(errno, fmt::format("cannot read {}", path_));
      if (count == 0) break;
      done += static_cast<size_t>(count);
    }
    return done;
  }

 private:
  const UniqueFd fd_;
  const std::string path_;
};

class PosixFileLock final : public FileLock {
 public:
  explicit PosixFileLock(UniqueFd fd) : fd_(std::move(fd)) {}

 private:
  const UniqueFd fd_;  // flock(2) lasts as long as its open file description
};

// Returns who holds the lock of an open file: "process 1234 (python3)", or "another process" if the
// system does not say. The kernel lists all locks in /proc/locks, one a line:
//   1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF
// The fields after WRITE are the process, and the file as MAJOR:MINOR:INODE, of which the first two
// are hexadecimal. The holder stays unknown if it is in another container or on another machine, if
// it has just released the lock, or if the file system shows another device there than stat(2)
// does.
std::string LockHolder(int fd) {
  struct stat found = {};
  std::string holder = "another process";
  if (::fstat(fd, &found) != 0) return holder;
  const std::string file =
      fmt::format("{:02x}:{:02x}:{}", major(found.st_dev), minor(found.st_dev), found.st_ino);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    std::istringstream fields(line);
    std::string number, kind, advisory, mode, at;
    long process = 0;
    if (!(fields >> number >> kind >> advisory >> mode >> process >> at)) continue;
    if (kind != "FLOCK" || at != file || process <= 0) continue;  // "-> FLOCK" waits for one
    std::string name;
    std::ifstream comm(fmt::format("/proc/{}/comm", process));
    std::getline(comm, name);
    return fmt::format("process {} ({})", process, name.empty() ? "unknown" : name);
  }
  return holder;
}

Status MakeOneFolder(const std::string& folder) {
  if (::mkdir(folder.c_str(), kFolderMode) == 0) return SyncFolder(FolderOf(folder));
  const int mkdir_errno = errno;
  struct stat found = {};
  if (mkdir_errno == EEXIST && ::stat(folder.c_str(), &found) == 0) {
    if (S_ISDIR(found.st_mode)) return OkStatus();
    return FailedPreconditionError("expected a folder at {}, found something else", folder);
  }
  return ErrnoError(mkdir_errno, fmt::format("cannot make the folder {}", folder));
}

}  // namespace

Result<std::vector<std::byte>> PosixFileSystem::ReadFile(const std::string& path,
                                                         uint64_t size_bytes_max) {
  // Opening a pipe without O_NONBLOCK waits for a writer, possibly for ever.
  DWS_ASSIGN_OR_RETURN(const UniqueFd fd, OpenPath(path, O_RDONLY | O_NONBLOCK, "open"));
  if (IsPipe(fd)) DWS_RETURN_IF_ERROR(AwaitBytes(fd, path));
  std::vector<std::byte> bytes;
  // Reads to the end instead of trusting fstat: the file may grow, and special files have no size.
  constexpr size_t kStepBytes = 64 << 10;
  while (true) {
    const size_t used = bytes.size();
    bytes.resize(used + kStepBytes);
    const ssize_t count = ::read(fd.get(), bytes.data() + used, kStepBytes);
    const int read_errno = errno;
    bytes.resize(used + (count > 0 ? static_cast<size_t>(count) : 0));
    if (count < 0 && read_errno == EINTR) continue;
    if (count < 0 && read_errno == EAGAIN) {
      DWS_RETURN_IF_ERROR(AwaitBytes(fd, path));
      continue;
    }
    if (count < 0 && read_errno == EISDIR) {
      return FailedPreconditionError("expected a file at {}, found a folder", path);
    }
    if (count < 0) return ErrnoError(read_errno, fmt::format("cannot read {}", path));
    if (count == 0 && bytes.empty() && IsPipe(fd)) {
      return UnavailableError("{} is a pipe that has been read to its end", path);
    }
    if (count == 0) return bytes;
    if (bytes.size() > size_bytes_max) {
      return ResourceExhaustedError("{} is larger than the {} bytes allowed", path, size_bytes_max);
    }
  }
}

Result<std::unique_ptr<ReadableFile>> PosixFileSystem::OpenForRead(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe of that name would block the caller.
  DWS_ASSIGN_OR_RETURN(UniqueFd fd, OpenPath(path, O_RDONLY | O_NONBLOCK, "open"));
  struct stat found = {};
  if (::fstat(fd.get(), &found) != 0) return ErrnoError(errno, fmt::format("cannot stat {}", path));
  if (!S_ISREG(found.st_mode)) {
    return FailedPreconditionError("expected a file at {}, found something else", path);
  }
  return std::make_unique<PosixReadableFile>(std::move(fd), path);
}

Result<std::unique_ptr<AppendFile>> PosixFileSystem::OpenForAppend(const std::string& path) {
  const bool existed = ::access(path.c_str(), F_OK) == 0;
  DWS_ASSIGN_OR_RETURN(UniqueFd fd, OpenPath(path, O_WRONLY | O_APPEND | O_CREAT, "open"));
  if (!existed) DWS_RETURN_IF_ERROR(SyncFolder(FolderOf(path)));
  return std::make_unique<PosixAppendFile>(std::move(fd), path);
}

Result<std::unique_ptr<AppendFile>> PosixFileSystem::Create(const std::string& path) {
  DWS_ASSIGN_OR_RETURN(UniqueFd fd, OpenPath(path, O_WRONLY | O_CREAT | O_TRUNC, "create"));
  return std::make_unique<PosixAppendFile>(std::move(fd), path);
}

Status PosixFileSystem::Rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    return ErrnoError(errno, fmt::format("cannot rename {} to {}", from, to));
  }
  return SyncFolder(FolderOf(to));
}

Status PosixFileSystem::ReplaceFile(const std::string& path, ByteSpan bytes) {
  const std::string temporary = path + ".tmp";
  Status written = [&]() -> Status {
    DWS_ASSIGN_OR_RETURN(const UniqueFd fd,
                         OpenPath(temporary, O_WRONLY | O_CREAT | O_TRUNC, "create"));
    DWS_RETURN_IF_ERROR(WriteAll(fd, bytes, temporary));
    return SyncFd(fd, temporary);
  }();
  DWS_KILLPOINT("file.replace.before_rename");
  if (written.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    written = ErrnoError(errno, fmt::format("cannot rename {} to {}", temporary, path));
  }
  if (!written.ok()) {
    ::unlink(temporary.c_str());
    return written;
  }
  DWS_KILLPOINT("file.replace.after_rename");
  return SyncFolder(FolderOf(path));
}

Result<std::vector<std::string>> PosixFileSystem::List(const std::string& folder) {
  DIR* const handle = ::opendir(folder.c_str());
  if (handle == nullptr) return ErrnoError(errno, fmt::format("cannot list {}", folder));
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(handle)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
    errno = 0;
  }
  const int list_errno = errno;
  ::closedir(handle);
  if (list_errno != 0) return ErrnoError(list_errno, fmt::format("cannot list {}", folder));
  std::sort(names.begin(), names.end());
  return names;
}

Status PosixFileSystem::MakeFolders(const std::string& folder) {
  for (size_t slash = folder.find('/', 1); slash != std::string::npos;
       slash = folder.find('/', slash + 1)) {
    DWS_RETURN_IF_ERROR(MakeOneFolder(folder.substr(0, slash)));
  }
  return MakeOneFolder(folder);
}

Status PosixFileSystem::Remove(const std::string& path) {
  if (::unlink(path.c_str()) != 0) return ErrnoError(errno, fmt::format("cannot remove {}", path));
  return OkStatus();
}

Status PosixFileSystem::RemoveFolder(const std::string& folder) {
  if (::rmdir(folder.c_str()) != 0) {
    return ErrnoError(errno, fmt::format("cannot remove the folder {}", folder));
  }
  return OkStatus();
}

Result<std::unique_ptr<FileLock>> PosixFileSystem::Lock(const std::string& path) {
  DWS_ASSIGN_OR_RETURN(UniqueFd fd, OpenPath(path, O_RDWR | O_CREAT, "open the lock"));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return UnavailableError("{} is locked by {}", path, LockHolder(fd.get()));
    }
    return ErrnoError(errno, fmt::format("cannot lock {}", path));
  }
  return std::make_unique<PosixFileLock>(std::move(fd));
}

}  // namespace dws
