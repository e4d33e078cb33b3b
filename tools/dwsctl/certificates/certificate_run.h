// What the commands of `dwsctl certificates` do. What is to be written is made in memory, and
// looked for on disk, before the first file is written.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/identity_limits.h"
#include "tools/dwsctl/base/console.h"
#include "tools/dwsctl/certificates/certificate_files.h"

namespace dws::dwsctl {

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

// Each prints a line for each certificate. INVALID_ARGUMENT: the command line; else as the files'
// functions and certificate_maker.h.
Status RunAuthority(const CertificateFlags& flags, Console& console);
Status RunIssue(const CertificateFlags& flags, Console& console);
Status RunJob(const CertificateFlags& flags, Console& console);
// One file that cannot be renewed keeps no other from it; the last error is returned, others are
// printed.
Status RunRenew(const CertificateFlags& flags, Console& console);

}  // namespace dws::dwsctl
