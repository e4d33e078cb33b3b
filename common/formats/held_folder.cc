#include "common/formats/held_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string_view>

namespace dws {
namespace {

Status Changed(const std::string& what) {
  return UnavailableError("{} was replaced, removed or written while it was read: read it again",
                          what);
}

Status TooLarge(const std::string& path, uint64_t size_bytes_max) {
  return ResourceExhaustedError("{} is larger than the {} bytes allowed", path, size_bytes_max);
}

// Reads until the end of the file instead of the size from fstat, because the file may grow.
Result<std::vector<std::byte>> ReadToEnd(int fd, const std::string& path, uint64_t size_bytes_max) {
  constexpr size_t kStepBytes = 64 << 10;
  std::vector<std::byte> bytes;
  while (true) {
    const size_t used = bytes.size();
    bytes.resize(used + kStepBytes);
    const ssize_t count = ::pread(fd, bytes.data() + used, kStepBytes, static_cast<off_t>(used));
    const int read_errno = errno;
    bytes.resize(used + (count > 0 ? static_cast<size_t>(count) : 0));
    if (count < 0 && read_errno == EINTR) continue;
    if (count < 0) return ErrnoError(read_errno, fmt::format("cannot read {}", path));
    if (count == 0) return bytes;
    if (bytes.size() > size_bytes_max) return TooLarge(path, size_bytes_max);
  }
}

}  // namespace

Result<HeldFolder> HeldFolder::Open(const std::string& path, OnAccess on_access) {
  HeldFolder folder(UniqueFd(), {.folder_fd = AT_FDCWD, .name = path, .path = path},
                    std::move(on_access));
  DWS_RETURN_IF_ERROR(folder.OpenIt());
  return folder;
}

Result<HeldFolder> HeldFolder::OpenFolder(const std::string& name) const {
  UniqueFd parent(::fcntl(folder_.get(), F_DUPFD_CLOEXEC, 0));
  if (!parent.valid()) return ErrnoError(errno, fmt::format("cannot hold {}", path()));
  FilePlace place = PlaceOf(name);
  place.folder_fd = parent.get();
  HeldFolder folder(std::move(parent), std::move(place), on_access_);
  DWS_RETURN_IF_ERROR(folder.OpenIt());
  return folder;
}

Status HeldFolder::OpenIt() {
  Access(path());
  folder_.reset(
      ::openat(place_.folder_fd, place_.name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder_.valid()) {
    const int open_errno = errno;
    if (open_errno == ENOTDIR) {
      return FailedPreconditionError("expected a folder at {}, found something else", path());
    }
    return ErrnoError(open_errno, fmt::format("cannot open the folder {}", path()));
  }
  DWS_ASSIGN_OR_RETURN(opened_, StampAt({.folder_fd = folder_.get(), .name = ".", .path = path()}));
  return OkStatus();
}

FilePlace HeldFolder::PlaceOf(const std::string& name) const {
  return {.folder_fd = folder_.get(), .name = name, .path = path() + "/" + name};
}

Result<std::vector<std::string>> HeldFolder::List() const {
  Access(path());
  // A directory descriptor has one read position, so each listing opens a new one.
  UniqueFd fd(::openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoError(errno, fmt::format("cannot list {}", path()));
  const std::unique_ptr<DIR, int (*)(DIR*)> handle(::fdopendir(fd.get()), &::closedir);
  if (handle == nullptr) return ErrnoError(errno, fmt::format("cannot list {}", path()));
  static_cast<void>(fd.release());  // now owned by the handle
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(handle.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
    errno = 0;
  }
  if (errno != 0) return ErrnoError(errno, fmt::format("cannot list {}", path()));
  std::sort(names.begin(), names.end());
  return names;
}

Result<std::vector<std::byte>> HeldFolder::ReadFile(const std::string& name,
                                                    uint64_t size_bytes_max) {
  const FilePlace place = PlaceOf(name);
  Access(place.path);
  // Without O_NONBLOCK, opening a pipe would wait for its writer, possibly for ever.
  UniqueFd fd(::openat(place.folder_fd, name.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) return ErrnoError(errno, fmt::format("cannot open {}", place.path));
  DWS_ASSIGN_OR_RETURN(const FileStamp stamp, StampOfFile(fd.get(), place.path));
  DWS_RETURN_IF_ERROR(Note(name, stamp));
  if (stamp.size_bytes > size_bytes_max) return TooLarge(place.path, size_bytes_max);
  DWS_ASSIGN_OR_RETURN(std::vector<std::byte> bytes,
                       ReadToEnd(fd.get(), place.path, size_bytes_max));
  held_.push_back(std::move(fd));
  return bytes;
}

Result<MappedFile> HeldFolder::OpenFile(const std::string& name, FileAccess access) {
  const FilePlace place = PlaceOf(name);
  Access(place.path);
  DWS_ASSIGN_OR_RETURN(MappedFile file, MappedFile::OpenAt(place, access));
  DWS_RETURN_IF_ERROR(Note(name, file.stamp()));
  return file;
}

Result<std::optional<FileStamp>> HeldFolder::Stamp(const std::string& name) const {
  const FilePlace place = PlaceOf(name);
  Access(place.path);
  const Result<FileStamp> found = StampAt(place);
  if (absl::IsNotFound(found.status())) return std::optional<FileStamp>();
  DWS_RETURN_IF_ERROR(found.status());
  return std::optional<FileStamp>(*found);
}

Status HeldFolder::Note(const std::string& name, const FileStamp& stamp) {
  const auto [known, added] = read_.emplace(name, stamp);
  return added || known->second == stamp ? OkStatus() : Changed(path() + "/" + name);
}

Status HeldFolder::CheckUnchanged() const {
  Access(path());
  const Result<FileStamp> now = StampAt(place_);
  // The folder's times are not compared: another process may add a file that we do not read.
  if (!now.ok() || now->device != opened_.device || now->inode != opened_.inode) {
    return Changed(path());
  }
  for (const auto& [name, stamp] : read_) {
    DWS_ASSIGN_OR_RETURN(const std::optional<FileStamp> found, Stamp(name));
    if (found != stamp) return Changed(path() + "/" + name);
  }
  return OkStatus();
}

}  // namespace dws
