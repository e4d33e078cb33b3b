// The three PEM files that mutual TLS needs, read and checked before anything uses them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/service/security/identity.h"

namespace dws {

// The paths. Either all three are given or none.
struct TlsFiles {
  std::string ca;    // certificates of the trusted CAs of clients and servers
  std::string cert;  // the own certificate, then the intermediate ones up to a CA in `ca`
  std::string key;   // its private key, not encrypted

  bool given() const { return !ca.empty() || !cert.empty() || !key.empty(); }
};

// The contents of the files at one moment. Immutable.
struct TlsMaterial {
  std::string ca_pem;
  std::string cert_pem;
  std::string key_pem;
  std::vector<Identity> identities;  // of the own certificate
  int64_t expires_unix_seconds = 0;  // of the own certificate
  uint64_t generation = 0;           // grows with each reload; unique in a Credentials

  // The URI of the first identity, "" when it has none.
  std::string identity() const;
};

// INVALID_ARGUMENT: not all three paths are given.
Status CheckTlsFiles(const TlsFiles& files);

// Reads the files without checking them, at most limits::kTlsFileBytesMax each. Errors as
// FileSystem::ReadFile, naming the flag.
Result<TlsMaterial> ReadTlsFiles(const TlsFiles& files);

// Checks the material, and fills in identities and expiry. FAILED_PRECONDITION, naming the file and
// the problem: nothing in PEM, an encrypted or broken key, a key of another certificate, a
// certificate that is not yet or no longer valid at `unix_seconds`, a certificate that no CA of the
// file has signed, an identity that cannot be parsed, or one of `required` that is missing.
Status CheckTlsMaterial(const TlsFiles& files, std::span<const Identity> required,
                        int64_t unix_seconds, TlsMaterial& material);

}  // namespace dws
