#include "common/formats/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/base/check.h"

namespace dws {
namespace {

Result<MutableByteSpan> Map(int fd, uint64_t size_bytes, FileAccess access,
                            const std::string& path) {
  const int protection = access == FileAccess::kReadOnly ? PROT_READ : PROT_READ | PROT_WRITE;
  void* const at = ::mmap(nullptr, size_bytes, protection, MAP_SHARED, fd, 0);
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

Result<MappedFile> MappedFile::OpenAt(const FilePlace& place, FileAccess access) {
  // Without O_NONBLOCK, opening a pipe would wait for its writer.
  const int flags = (access == FileAccess::kWritable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK;
  MappedFile file(place.path, access);
  file.fd_.reset(::openat(place.folder_fd, place.name.c_str(), flags));
  if (!file.fd_.valid()) return ErrnoError(errno, fmt::format("cannot open {}", place.path));
  DWS_ASSIGN_OR_RETURN(file.opened_, StampOfFile(file.fd_.get(), place.path));
  const uint64_t size_bytes = file.opened_.size_bytes;
  if (access == FileAccess::kUnmapped) return file;
  if (size_bytes > 0) {
    DWS_ASSIGN_OR_RETURN(file.bytes_, Map(file.fd_.get(), size_bytes, access, place.path));
    file.guard_ = std::make_unique<MappingGuard>(file.bytes_, place.path,
                                                 /*owner_looks=*/access == FileAccess::kWritable);
  }
  if (access == FileAccess::kReadOnly) file.fd_.reset();
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      access_(other.access_),
      opened_(other.opened_),
      fd_(std::move(other.fd_)),
      bytes_(std::exchange(other.bytes_, MutableByteSpan())),
      guard_(std::move(other.guard_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(access_, other.access_);
  std::swap(opened_, other.opened_);
  std::swap(fd_, other.fd_);
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

Status MappedFile::ReadAt(uint64_t offset, MutableByteSpan to) const {
  DWS_CHECK(access_ == FileAccess::kUnmapped && offset + to.size() <= opened_.size_bytes);
  for (size_t done = 0; done < to.size();) {
    const ssize_t count =
        ::pread(fd_.get(), to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoError(errno, fmt::format("cannot read {}", path_));
    if (count == 0) {
      return UnavailableError("{}: had {} bytes, ended after {} when it was read", path_,
                              opened_.size_bytes, offset + done);
    }
    done += static_cast<size_t>(count);
  }
  return OkStatus();
}

void MappedFile::Release(uint64_t offset, uint64_t size_bytes) const {
  static const auto page_bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t begin = offset / page_bytes * page_bytes;
  const MutableByteSpan bytes = bytes_.subspan(begin, offset + size_bytes - begin);
  if (!bytes.empty()) static_cast<void>(::madvise(bytes.data(), bytes.size(), MADV_DONTNEED));
}

void MappedFile::StartWriteback(uint64_t offset, uint64_t size_bytes) const {
  DWS_CHECK(access_ == FileAccess::kWritable);
  static_cast<void>(::sync_file_range(fd_.get(), static_cast<off_t>(offset),
                                      static_cast<off_t>(size_bytes), SYNC_FILE_RANGE_WRITE));
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
  return found.ok() && found->device == opened_.device && found->inode == opened_.inode &&
         found->size_bytes == opened_.size_bytes;
}

Status MappedFile::CheckUnchanged() const {
  const auto found = StampAt({.folder_fd = AT_FDCWD, .name = path_, .path = path_});
  if (found.ok() && *found == opened_) return OkStatus();
  return AbortedError("{} was changed while it was read: do it again when nobody changes it",
                      path_);
}

}  // namespace dws
