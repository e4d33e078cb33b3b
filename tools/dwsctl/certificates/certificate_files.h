// The files of `dwsctl certificates`: an authority's folder (ca.pem, ca.key), and a folder for each
// certificate with what its owner needs (ca.pem, cert.pem, key.pem).
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/service/security/certificate_maker.h"

namespace dws::dwsctl {

enum class Existing {
  kRefuse,   // a file of that name is an error
  kReplace,  // atomically
};

struct NewFile {
  std::string path;
  std::string content;
  unsigned mode = 0644;  // whatever the umask
};

// Appears as a whole and durably, with its mode from the first moment, in a folder that is made
// where it is missing (0750, whatever the umask). ALREADY_EXISTS; else from errno. Either names the
// path.
Status WriteFile(const NewFile& file, Existing existing);

// ALREADY_EXISTS, naming it and --force: one of them is there. For looking before anything is
// written.
Status CheckAbsent(const std::vector<std::string>& paths);

// That nobody but this user, and root, can read, exchange or remove a private key by its folder.
// OK too where it is not there yet: then it is made. For looking before anything is written; it is
// looked at again then. FAILED_PRECONDITION, naming it and what to do: another user owns it, or its
// group or others can write to it.
Status CheckKeyFolder(const std::string& folder);

struct AuthorityFiles {
  explicit AuthorityFiles(const std::string& folder)
      : cert(folder + "/ca.pem"), key(folder + "/ca.key") {}
  std::string cert;
  std::string key;  // 0600
};

// NOT_FOUND: no authority is there, in words.
Result<CertificatePem> ReadAuthority(const std::string& folder);
Status WriteAuthority(const std::string& folder, const CertificatePem& authority,
                      Existing existing);

struct IdentityFiles {
  // In FOLDER/ROLE-NAME, the name escaped as in the identity's URI.
  IdentityFiles(const std::string& out, const Identity& identity);
  std::string folder;
  std::string ca;
  std::string cert;
  std::string key;  // 0640, for a group that the daemon is in
};
// CheckKeyFolder of its folder; the one that this lies in may also be one that everybody writes to
// and nobody takes from another, as /tmp is.
Status CheckKeyFolders(const IdentityFiles& files);

Status WriteIdentity(const IdentityFiles& files, const std::string& ca_pem,
                     const CertificatePem& certificate, Existing existing);

// FAILED_PRECONDITION, naming both: `path` is a symbolic link, whose place a new file would take.
Status CheckNoLink(const std::string& path);

// A certificate's or a key's file, limits::kTlsFileBytesMax at most.
Result<std::string> ReadPem(const std::string& path);

}  // namespace dws::dwsctl
