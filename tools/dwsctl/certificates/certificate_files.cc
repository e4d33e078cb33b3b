// A key must never be readable by others, not even for a moment, and no file may be visible half
// written. So each file is made under a temporary name with its final mode, synced, and then
// renamed.
#include "tools/dwsctl/certificates/certificate_files.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/base/file_system.h"
#include "common/base/unique_fd.h"
#include "common/model/limits.h"

namespace dws::dwsctl {
namespace {

constexpr unsigned kAuthorityKeyMode = 0600;
constexpr unsigned kKeyMode = 0640;
constexpr unsigned kCertificateMode = 0644;

// Sets the process's umask to zero while it lives, so that new files and folders have the requested
// mode from the start. This is safe because dwsctl has only one thread here.
class NoUmask {
 public:
  NoUmask() : before_(::umask(0)) {}
  ~NoUmask() { ::umask(before_); }
  NoUmask(const NoUmask&) = delete;
  NoUmask& operator=(const NoUmask&) = delete;

 private:
  const mode_t before_;
};

Status WriteAll(int fd, std::string_view content, const std::string& path) {
  while (!content.empty()) {
    const ssize_t written = ::write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoError(errno, path);
    content.remove_prefix(static_cast<size_t>(written));
  }
  return OkStatus();
}

// Writes `file` to `path`, its temporary name.
Status Fill(const std::string& path, const NewFile& file) {
  const UniqueFd fd(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (fd.get() < 0) return ErrnoError(errno, path);
  if (::fchmod(fd.get(), file.mode) != 0) return ErrnoError(errno, path);
  DWS_RETURN_IF_ERROR(WriteAll(fd.get(), file.content, path));
  return ::fsync(fd.get()) == 0 ? OkStatus() : ErrnoError(errno, path);
}

Status Name(const std::string& from, const std::string& to, Existing existing) {
  const unsigned flags = existing == Existing::kRefuse ? RENAME_NOREPLACE : 0;
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0) return OkStatus();
  if (errno == EEXIST) return CheckAbsent({to});
  return ErrnoError(errno, to);
}

Status SyncFolder(const std::string& folder) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0 || ::fsync(fd.get()) != 0) return ErrnoError(errno, folder);
  return OkStatus();
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Status MakeFolders(const std::string& folder) {
  const NoUmask no_umask;
  PosixFileSystem files;
  return files.MakeFolders(folder);
}

enum class Others { kMayNotWrite, kMayAddTheirOwn };

Status CheckOwn(const std::string& folder, Others others) {
  struct stat found = {};
  // A missing folder is created later. If it is not a folder, the later write reports that.
  if (::stat(folder.c_str(), &found) != 0 || !S_ISDIR(found.st_mode)) return OkStatus();
  const uid_t user = ::geteuid();
  if (found.st_uid != user && found.st_uid != 0) {
    return FailedPreconditionError(
        "a private key is written to {}: it is owned by uid {}, expected uid {}, which runs "
        "dwsctl; nothing is written; chown the folder, name another one, or run this as uid {}",
        folder, found.st_uid, user, found.st_uid);
  }
  const bool sticky = (found.st_mode & S_ISVTX) != 0 && others == Others::kMayAddTheirOwn;
  if ((found.st_mode & (S_IWGRP | S_IWOTH)) != 0 && !sticky) {
    return FailedPreconditionError(
        "a private key is written to {}: others can write to it (mode {:04o}), expected its owner "
        "only; nothing is written; run `chmod go-w` on it, or name another one",
        folder, found.st_mode & 07777);
  }
  return OkStatus();
}

// Checks the folder again, because another user may have created it since the first check.
Status WriteKey(const NewFile& file, Existing existing) {
  const std::string folder = FolderOf(file.path);
  DWS_RETURN_IF_ERROR(MakeFolders(folder));
  DWS_RETURN_IF_ERROR(CheckKeyFolder(folder));
  return WriteFile(file, existing);
}

}  // namespace

Status CheckKeyFolder(const std::string& folder) { return CheckOwn(folder, Others::kMayNotWrite); }

Status CheckKeyFolders(const IdentityFiles& files) {
  DWS_RETURN_IF_ERROR(CheckOwn(FolderOf(files.folder), Others::kMayAddTheirOwn));
  return CheckKeyFolder(files.folder);
}

Status CheckNoLink(const std::string& path) {
  std::error_code failed;
  const std::filesystem::path target = std::filesystem::read_symlink(path, failed);
  if (failed) return OkStatus();
  std::filesystem::path whole = std::filesystem::weakly_canonical(path, failed);
  if (failed) whole = target;
  return FailedPreconditionError(
      "{} is a symbolic link to {}, expected the certificate file itself, because renew replaces "
      "that file: nothing is written; give the path {}",
      path, target.string(), whole.string());
}

Status WriteFile(const NewFile& file, Existing existing) {
  const std::string folder = FolderOf(file.path);
  DWS_RETURN_IF_ERROR(MakeFolders(folder));
  const std::string other = fmt::format("{}.new-{}", file.path, ::getpid());
  Status status = Fill(other, file);
  if (status.ok()) status = Name(other, file.path, existing);
  if (!status.ok()) {
    static_cast<void>(::unlink(other.c_str()));
    return status;
  }
  return SyncFolder(folder);
}

Status CheckAbsent(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    struct stat found = {};
    if (::lstat(path.c_str(), &found) != 0) continue;
    return AlreadyExistsError(
        "{} exists already, expected no such file: `dwsctl certificates renew` extends a "
        "certificate, --force replaces everything",
        path);
  }
  return OkStatus();
}

Result<std::string> ReadPem(const std::string& path) {
  struct stat found = {};
  if (::stat(path.c_str(), &found) != 0) return ErrnoError(errno, path);
  if (!S_ISREG(found.st_mode)) {
    return FailedPreconditionError("{}: expected a file, found something else", path);
  }
  PosixFileSystem files;
  DWS_ASSIGN_OR_RETURN(const auto bytes, files.ReadFile(path, limits::kTlsFileBytesMax));
  return std::string(AsText(bytes));
}

Result<CertificatePem> ReadAuthority(const std::string& folder) {
  const AuthorityFiles files(folder);
  CertificatePem authority;
  Result<std::string> cert = ReadPem(files.cert);
  if (absl::IsNotFound(cert.status())) {
    return NotFoundError(
        "{} has no authority (ca.pem): make one with `dwsctl certificates authority --out={}`",
        folder, folder);
  }
  DWS_ASSIGN_OR_RETURN(authority.cert_pem, std::move(cert));
  DWS_ASSIGN_OR_RETURN(authority.key_pem, ReadPem(files.key));
  return authority;
}

Status WriteAuthority(const std::string& folder, const CertificatePem& authority,
                      Existing existing) {
  const AuthorityFiles files(folder);
  DWS_RETURN_IF_ERROR(WriteKey(
      {.path = files.key, .content = authority.key_pem, .mode = kAuthorityKeyMode}, existing));
  return WriteFile({.path = files.cert, .content = authority.cert_pem, .mode = kCertificateMode},
                   existing);
}

IdentityFiles::IdentityFiles(const std::string& out, const Identity& identity) {
  const std::string uri = ToUri(identity);
  folder = fmt::format("{}/{}-{}", out, ToString(identity.role), uri.substr(uri.rfind('/') + 1));
  ca = folder + "/ca.pem";
  cert = folder + "/cert.pem";
  key = folder + "/key.pem";
}

Status WriteIdentity(const IdentityFiles& files, const std::string& ca_pem,
                     const CertificatePem& certificate, Existing existing) {
  DWS_RETURN_IF_ERROR(
      WriteKey({.path = files.key, .content = certificate.key_pem, .mode = kKeyMode}, existing));
  DWS_RETURN_IF_ERROR(WriteFile(
      {.path = files.cert, .content = certificate.cert_pem, .mode = kCertificateMode}, existing));
  return WriteFile({.path = files.ca, .content = ca_pem, .mode = kCertificateMode}, existing);
}

}  // namespace dws::dwsctl
