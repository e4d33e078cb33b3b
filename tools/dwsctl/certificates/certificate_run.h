// The actions of the commands of `dwsctl certificates`. Before they write the first file, they
// check that the target paths are free and safe.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/identity_limits.h"
#include "tools/dwsctl/base/console.h"
#include "tools/dwsctl/certificates/certificate_files.h"

namespace dws::dwsctl {

// The flags of all these commands; each command uses some of them.
struct CertificateFlags {
  bool json = false;
  bool force = false;
  std::string authority;  // its folder
  std::string out;
  std::string job_id;
  std::string role;
  std::string name;
  std::vector<std::string> hosts;
  std::vector<std::string> publish;
  std::vector<std::string> receive;
  std::vector<std::string> operate;
  std::vector<std::string> files;
  int days = limits::kCertificateDaysDefault;
  int within_days = limits::kRenewWithinDaysDefault;

  Existing existing() const { return force ? Existing::kReplace : Existing::kRefuse; }
};

// Each prints a line for each certificate. INVALID_ARGUMENT: the command line is wrong. Others: as
// certificate_files.h and certificate_maker.h.
Status RunAuthority(const CertificateFlags& flags, Console& console);
Status RunIssue(const CertificateFlags& flags, Console& console);
Status RunJob(const CertificateFlags& flags, Console& console);
// A file that cannot be renewed does not stop the renewal of the others. The last error is
// returned, the others are printed.
Status RunRenew(const CertificateFlags& flags, Console& console);

}  // namespace dws::dwsctl
