#include "common/formats/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/base/check.h"
#include "common/base/unique_fd.h"

namespace dws {
namespace {

Result<MutableByteSpan> Map(int fd, uint64_t size_bytes, FileAccess access,
                            const std::string& path) {
  const bool copied = access == FileAccess::kCopied;
  const int protection = access == FileAccess::kReadOnly ? PROT_READ : PROT_READ | PROT_WRITE;
  const int flags = copied ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* const at = ::mmap(nullptr, size_bytes, protection, flags, copied ? -1 : fd, 0);
  if (at == MAP_FAILED) {
    const int map_errno = errno;
    if (map_errno == ENOMEM) {
      return ResourceExhaustedError("{}: no memory to map its {} bytes", path, size_bytes);
    }
    return ErrnoError(map_errno, fmt::format("cannot map {}", path));
  }
  return MutableByteSpan(static_cast<std::byte*>(at), size_bytes);
}

FileStamp StampOf(const struct stat& found) {
  const auto nanoseconds = [](const struct timespec& time) {
    return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  };
  return {.device = found.st_dev,
          .inode = found.st_ino,
          .size_bytes = static_cast<uint64_t>(found.st_size),
          .modified_ns = nanoseconds(found.st_mtim),
          .changed_ns = nanoseconds(found.st_ctim)};
}

Status ReadAll(int fd, MutableByteSpan to, const std::string& path,
               const std::function<void()>& on_piece) {
  size_t done = 0;
  while (done < to.size()) {
    const size_t piece = std::min(to.size() - done, MappedFile::kCopyPieceBytes);
    const ssize_t count = ::pread(fd, to.data() + done, piece, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoError(errno, fmt::format("cannot read {}", path));
    if (count == 0) {
      return UnavailableError("{}: had {} bytes, ended after {} when it was read", path, to.size(),
                              done);
    }
    done += static_cast<size_t>(count);
    if (on_piece != nullptr && done < to.size()) on_piece();
  }
  return OkStatus();
}

}  // namespace

Result<FileStamp> StampAt(const FilePlace& place) {
  struct stat found = {};
  if (::fstatat(place.folder_fd, place.name.c_str(), &found, 0) != 0) {
    return ErrnoError(errno, fmt::format("cannot stat {}", place.path));
  }
  return StampOf(found);
}

Result<FileStamp> StampOfFile(int fd, const std::string& path) {
  struct stat found = {};
  if (::fstat(fd, &found) != 0) return ErrnoError(errno, fmt::format("cannot stat {}", path));
  if (!S_ISREG(found.st_mode)) {
    return FailedPreconditionError("expected a file at {}, found something else", path);
  }
  return StampOf(found);
}

Result<MappedFile> MappedFile::Open(const std::string& path, FileAccess access) {
  return OpenAt({.folder_fd = AT_FDCWD, .name = path, .path = path}, access);
}

Result<MappedFile> MappedFile::OpenAt(const FilePlace& place, FileAccess access,
                                      const std::function<void()>& on_piece) {
  // Without O_NONBLOCK, opening a pipe would wait for its writer.
  const int flags = (access == FileAccess::kWritable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK;
  const UniqueFd fd(::openat(place.folder_fd, place.name.c_str(), flags));
  if (!fd.valid()) return ErrnoError(errno, fmt::format("cannot open {}", place.path));
  MappedFile file(place.path, access);
  DWS_ASSIGN_OR_RETURN(file.opened_, StampOfFile(fd.get(), place.path));
  const uint64_t size_bytes = file.opened_.size_bytes;
  if (size_bytes == 0) return file;
  DWS_ASSIGN_OR_RETURN(file.bytes_, Map(fd.get(), size_bytes, access, place.path));
  if (access == FileAccess::kCopied) {
    DWS_RETURN_IF_ERROR(ReadAll(fd.get(), file.bytes_, place.path, on_piece));
  } else {
    file.guard_ = std::make_unique<MappingGuard>(file.bytes_, place.path,
                                                 /*owner_looks=*/access == FileAccess::kWritable);
  }
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      access_(other.access_),
      opened_(other.opened_),
      bytes_(std::exchange(other.bytes_, MutableByteSpan())),
      guard_(std::move(other.guard_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(access_, other.access_);
  std::swap(opened_, other.opened_);
  std::swap(bytes_, other.bytes_);
  std::swap(guard_, other.guard_);
  return *this;
}

MappedFile::~MappedFile() {
  guard_.reset();  // before another mapping may be in its place
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

MutableByteSpan MappedFile::writable() const {
  DWS_CHECK(access_ == FileAccess::kWritable);
  return bytes_;
}

Status MappedFile::CheckIntact() const {
  if (guard_ == nullptr || !guard_->lost()) return OkStatus();
  return DataLossError(
      "{}: bytes are missing: another process has truncated it, or its disk is full (the file is "
      "sparse). Put it there again",
      path_);
}

Status MappedFile::Sync() const {
  if (access_ != FileAccess::kWritable || bytes_.empty()) return OkStatus();
  DWS_RETURN_IF_ERROR(CheckIntact());
  if (::msync(bytes_.data(), bytes_.size(), MS_SYNC) != 0) {
    return ErrnoError(errno, fmt::format("cannot sync {}", path_));
  }
  if (::utimensat(AT_FDCWD, path_.c_str(), nullptr, 0) != 0) {
    return ErrnoError(errno, fmt::format("cannot set the time of {}", path_));
  }
  return OkStatus();
}

bool MappedFile::in_place() const {
  const auto found = StampAt({.folder_fd = AT_FDCWD, .name = path_, .path = path_});
  return found.ok() && found->device == opened_.device && found->inode == opened_.inode;
}

Status MappedFile::CheckUnchanged() const {
  const auto found = StampAt({.folder_fd = AT_FDCWD, .name = path_, .path = path_});
  if (found.ok() && *found == opened_) return OkStatus();
  return AbortedError("{} was changed while it was read: do it again when nobody changes it",
                      path_);
}

}  // namespace dws
