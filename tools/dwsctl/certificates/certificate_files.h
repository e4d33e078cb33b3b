// The files of `dwsctl certificates`: the authority's folder (ca.pem, ca.key), and for each
// certificate a folder with the files that its owner needs (ca.pem, cert.pem, key.pem).
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/service/security/certificate_maker.h"

namespace dws::dwsctl {

enum class Existing {
  kRefuse,   // a file of that name is an error
  kReplace,  // replace it atomically
};

struct NewFile {
  std::string path;
  std::string content;
  unsigned mode = 0644;  // independent of the umask
};

// Writes a file atomically and durably, with its mode from the start. Creates a missing folder
// (0750, independent of the umask). ALREADY_EXISTS; else from errno. The message names the path.
Status WriteFile(const NewFile& file, Existing existing);

// For checks before anything is written. ALREADY_EXISTS, naming the file and --force: one of
// `paths` exists.
Status CheckAbsent(const std::vector<std::string>& paths);

// Checks that the folder lets only this user and root replace or remove a private key in it. OK
// also when it does not exist yet, because it is then created. Call it before anything is written;
// the writing functions check again. FAILED_PRECONDITION, naming the folder and what to do: another
// user owns it, or its group or others can write to it.
Status CheckKeyFolder(const std::string& folder);

// The files of an authority.
struct AuthorityFiles {
  explicit AuthorityFiles(const std::string& folder)
      : cert(folder + "/ca.pem"), key(folder + "/ca.key") {}
  std::string cert;
  std::string key;  // 0600
};

// NOT_FOUND, with an explanation: there is no authority.
Result<CertificatePem> ReadAuthority(const std::string& folder);
Status WriteAuthority(const std::string& folder, const CertificatePem& authority,
                      Existing existing);

// The files of one certificate.
struct IdentityFiles {
  // In FOLDER/ROLE-NAME, the name escaped as in the identity's URI.
  IdentityFiles(const std::string& out, const Identity& identity);
  std::string folder;
  std::string ca;
  std::string cert;
  std::string key;  // 0640, so that the daemon's group can read it
};
// CheckKeyFolder for the certificate's folder and for its parent. The parent may also be a folder
// with the sticky bit, like /tmp, where everybody may write but only remove their own files.
Status CheckKeyFolders(const IdentityFiles& files);

Status WriteIdentity(const IdentityFiles& files, const std::string& ca_pem,
                     const CertificatePem& certificate, Existing existing);

// FAILED_PRECONDITION, naming link and target: `path` is a symbolic link, which a new file would
// replace.
Status CheckNoLink(const std::string& path);

// Reads the file of a certificate or a key, at most limits::kTlsFileBytesMax.
Result<std::string> ReadPem(const std::string& path);

}  // namespace dws::dwsctl
