// Everything is relative to the folder that was opened and checked: another one that takes its path
// later is not used.
#include "receiver_daemon/transfer/host/host_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "common/base/check.h"
#include "common/base/wall_clock.h"
#include "common/formats/slime_delta/digest/xxh3.h"
#include "common/model/host_limits.h"
#include "common/model/limits.h"

namespace dws {
namespace {

constexpr size_t kDigestDigits = 32;
constexpr size_t kVersionDigits = 20;
constexpr size_t kNameBytes = kDigestDigits + 1 + kVersionDigits + 1 + kDigestDigits;
constexpr std::string_view kLock = ".lock";
constexpr std::string_view kTemporary = ".tmp";

using Sum = std::array<uint8_t, 16>;

// Begins the checksum of the file for `key`.
slime::Xxh3 BeginSum(const HostKey& key) {
  slime::Xxh3 sum;
  sum.Update(AsBytes(key.Name()));
  return sum;
}

// Parses a file's name and ignores its suffix; nullopt: it is not a name of this folder's files.
std::optional<HostKey> ParseName(std::string_view name) {
  if (name.size() < kNameBytes || name[kDigestDigits] != '-' ||
      name[kNameBytes - kDigestDigits - 1] != '-') {
    return std::nullopt;
  }
  const std::string_view suffix = name.substr(kNameBytes);
  if (!suffix.empty() && suffix != kLock && suffix != kTemporary) return std::nullopt;
  const std::string_view digits = name.substr(kDigestDigits + 1, kVersionDigits);
  uint64_t version = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), version);
  if (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size()) return std::nullopt;
  return HostKey{.stream = std::string(name.substr(0, kDigestDigits)),
                 .version = WeightVersion(version),
                 .object = std::string(name.substr(kNameBytes - kDigestDigits, kDigestDigits))};
}

// Returns whether all of `bytes` could be read. If not, errno says why; 0: the file ends early.
bool ReadAll(int fd, MutableByteSpan bytes, uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) errno = 0;
    if (got <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return true;
}

bool WriteAll(int fd, ByteSpan bytes, uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return true;
}

}  // namespace

std::string HostKey::Name() const {
  DWS_CHECK(stream.size() == kDigestDigits && object.size() == kDigestDigits);
  return fmt::format("{}-{:020}-{}", stream, version.value(), object);
}

Status HostFolder::Error(int errno_value, const char* what, const std::string& name) const {
  return ErrnoError(errno_value, fmt::format("cannot {} {}/{}", what, path_, name));
}

Result<HostFolder> HostFolder::Open(std::string path, uint64_t bytes_max) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoError(errno, fmt::format("cannot make the folder {}", path));
  }
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid() && (errno == ENOTDIR || errno == ELOOP)) {
    return FailedPreconditionError("expected a folder at {}, found something else", path);
  }
  if (!fd.valid()) return ErrnoError(errno, fmt::format("cannot open the folder {}", path));
  struct stat found = {};
  if (::fstat(fd.get(), &found) != 0) return ErrnoError(errno, fmt::format("cannot stat {}", path));
  if (found.st_uid != ::geteuid() || (found.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return FailedPreconditionError(
        "{} is of uid {} with mode {:04o}, expected uid {} and nobody else who may write: who "
        "writes "
        "there gives this engine its weights",
        path, found.st_uid, found.st_mode & 07777, ::geteuid());
  }
  HostFolder folder(std::move(path), std::move(fd), bytes_max);
  // A folder that is too full does not prevent the start: the next Put tries again.
  if (const Status status = folder.MakeRoom(""); !absl::IsResourceExhausted(status)) {
    DWS_RETURN_IF_ERROR(status);
  }
  return folder;
}

Result<UniqueFd> HostFolder::TryLock(const HostKey& key) const {
  const std::string name = key.Name().append(kLock);
  UniqueFd fd(::openat(folder_.get(), name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC,
                       S_IRUSR | S_IWUSR));
  if (!fd.valid()) return Error(errno, "open", name);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
  if (errno == EWOULDBLOCK || errno == EINTR) return UniqueFd();
  return Error(errno, "lock", name);
}

Result<std::optional<UniqueFd>> HostFolder::Find(const HostKey& key) const {
  const std::string name = key.Name();
  // Without O_NONBLOCK, opening a pipe of that name would wait for its writer.
  UniqueFd fd(
      ::openat(folder_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (fd.valid()) return std::optional<UniqueFd>(std::move(fd));
  if (errno == ENOENT) return std::optional<UniqueFd>();
  return Error(errno, "open", name);
}

Result<std::optional<Spool>> HostFolder::Read(const UniqueFd& file, const HostKey& key,
                                              Spool::Options options) const {
  const std::string name = key.Name();
  struct stat found = {};
  if (::fstat(file.get(), &found) != 0) return Error(errno, "stat", name);
  const auto file_bytes = static_cast<uint64_t>(found.st_size);
  if (S_ISREG(found.st_mode) && file_bytes == 0) return std::optional<Spool>();
  if (!S_ISREG(found.st_mode) || file_bytes < sizeof(Sum) ||
      file_bytes - sizeof(Sum) > options.size_bytes_max) {
    return DataLossError("{}/{} has {} bytes, expected a file with an object of at most {}", path_,
                         name, file_bytes, options.size_bytes_max);
  }
  const uint64_t size_bytes = file_bytes - sizeof(Sum);
  AttemptProgress progress(std::exchange(options.progress, nullptr));
  progress.Expect(size_bytes);
  options.size_bytes_max = options.size_bytes_expected = size_bytes;
  Spool spool(std::move(options));
  slime::Xxh3 sum = BeginSum(key);
  std::vector<std::byte> piece(std::min(size_bytes, limits::kHostSharePieceBytes));
  while (spool.size_bytes() < size_bytes) {
    const uint64_t at = spool.size_bytes();
    const MutableByteSpan part =
        MutableByteSpan(piece).first(std::min<uint64_t>(piece.size(), size_bytes - at));
    if (!ReadAll(file.get(), part, at)) {
      return errno == 0 ? DataLossError("{}/{} ends early", path_, name)
                        : Error(errno, "read", name);
    }
    sum.Update(part);
    DWS_RETURN_IF_ERROR(spool.Append(part));
    progress.Arrived(part.size());
  }
  Sum stored = {};
  if (!ReadAll(file.get(), std::as_writable_bytes(std::span(stored)), size_bytes) ||
      stored != sum.Digest()) {
    return DataLossError("{}/{} of {} bytes differs from its checksum", path_, name, file_bytes);
  }
  progress.Keep();
  return std::optional<Spool>(std::move(spool));
}

void HostFolder::Remove(const HostKey& key) const {
  ::unlinkat(folder_.get(), key.Name().c_str(), 0);
}

Status HostFolder::Put(const HostKey& key, const Spool& object) const {
  const Status put = Write(key, &object);
  // Receivers that wait for the file then fetch at once, instead of one after the other.
  if (!put.ok()) static_cast<void>(Write(key, nullptr));
  return put;
}

Status HostFolder::Write(const HostKey& key, const Spool* object) const {
  const std::string name = key.Name();
  const std::string temporary = std::string(name).append(kTemporary);
  ::unlinkat(folder_.get(), temporary.c_str(), 0);  // left by a receiver that died
  const UniqueFd file(::openat(folder_.get(), temporary.c_str(),
                               O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                               S_IRUSR | S_IWUSR));
  if (!file.valid()) return Error(errno, "create", temporary);
  Status status = object == nullptr ? OkStatus() : Fill(file, key, *object);
  if (status.ok() &&
      ::renameat(folder_.get(), temporary.c_str(), folder_.get(), name.c_str()) != 0) {
    status = Error(errno, "rename", temporary);
  }
  if (!status.ok()) ::unlinkat(folder_.get(), temporary.c_str(), 0);
  return status;
}

Status HostFolder::Fill(const UniqueFd& file, const HostKey& key, const Spool& object) const {
  const std::string name = key.Name().append(kTemporary);
  const uint64_t size_bytes = object.size_bytes();
  if (size_bytes > bytes_max_) {
    return ResourceExhaustedError("an object of {} bytes: {} may have {} in all", size_bytes, path_,
                                  bytes_max_);
  }
  // The file gets its size before room is made for it: if two are written at a time, each MakeRoom
  // counts both.
  if (::ftruncate(file.get(), static_cast<off_t>(size_bytes + sizeof(Sum))) != 0) {
    return Error(errno, "enlarge", name);
  }
  DWS_RETURN_IF_ERROR(MakeRoom(name));
  slime::Xxh3 sum = BeginSum(key);
  std::vector<std::byte> buffer;
  for (uint64_t at = 0; at < size_bytes; at += limits::kHostSharePieceBytes) {
    DWS_ASSIGN_OR_RETURN(
        const ByteSpan piece,
        object.Read(at, std::min(limits::kHostSharePieceBytes, size_bytes - at), buffer));
    sum.Update(piece);
    if (!WriteAll(file.get(), piece, at)) return Error(errno, "write", name);
  }
  const Sum digest = sum.Digest();
  if (!WriteAll(file.get(), std::as_bytes(std::span(digest)), size_bytes)) {
    return Error(errno, "write", name);
  }
  return OkStatus();
}

Result<std::vector<HostFolder::File>> HostFolder::List() const {
  UniqueFd fd(::openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return Error(errno, "list", ".");
  const std::unique_ptr<DIR, int (*)(DIR*)> handle(::fdopendir(fd.get()), &::closedir);
  if (handle == nullptr) return Error(errno, "list", ".");
  static_cast<void>(fd.release());  // now owned by the handle
  std::vector<File> files;
  while (const dirent* entry = ::readdir(handle.get())) {
    const std::string_view name = entry->d_name;
    const std::optional<HostKey> key = ParseName(name);
    struct stat found = {};
    if (!key.has_value() ||
        ::fstatat(folder_.get(), entry->d_name, &found, AT_SYMLINK_NOFOLLOW) != 0) {
      continue;
    }
    files.push_back(
        {.key = *key,
         .suffix = std::string(name.substr(kNameBytes)),
         .size_bytes = static_cast<uint64_t>(found.st_size),
         .modified_ns = int64_t{found.st_mtim.tv_sec} * 1'000'000'000 + found.st_mtim.tv_nsec});
  }
  std::sort(files.begin(), files.end(),
            [](const File& a, const File& b) { return a.modified_ns < b.modified_ns; });
  return files;
}

bool HostFolder::IsLeftover(const File& file) const {
  if (file.suffix != kTemporary) return false;
  const auto lock = TryLock(file.key);
  return lock.ok() && lock->valid();
}

Status HostFolder::MakeRoom(const std::string& own) const {
  DWS_ASSIGN_OR_RETURN(std::vector<File> files, List());
  const std::chrono::nanoseconds now = kSystemWallClock.Now().time_since_epoch();
  std::map<std::string, std::set<WeightVersion>> versions;
  uint64_t total_bytes = 0;
  for (const File& file : files) {
    versions[file.key.stream].insert(file.key.version);
    total_bytes += file.size_bytes;
  }
  const auto remove = [&](const File& file) {
    if (::unlinkat(folder_.get(), file.key.Name().append(file.suffix).c_str(), 0) == 0) {
      total_bytes -= file.size_bytes;
    }
  };
  std::erase_if(files, [&](const File& file) {
    if (file.key.Name().append(file.suffix) == own) return true;
    const std::set<WeightVersion>& known = versions[file.key.stream];
    const auto newer = std::distance(known.upper_bound(file.key.version), known.end());
    const bool old = static_cast<size_t>(newer) >= limits::kHostShareVersionsMax ||
                     now - std::chrono::nanoseconds(file.modified_ns) > limits::kHostShareAgeMax;
    if (!old && !IsLeftover(file)) return false;
    remove(file);
    return true;
  });
  for (const File& file : files) {
    if (total_bytes <= bytes_max_) break;
    if (file.suffix.empty()) remove(file);
  }
  if (total_bytes <= bytes_max_) return OkStatus();
  return ResourceExhaustedError("{} would have {} bytes, at most {} are allowed", path_,
                                total_bytes, bytes_max_);
}

}  // namespace dws
