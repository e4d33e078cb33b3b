// A run checks for existing files before it makes anything, so that a refused run has written
// nothing.
#include "tools/dwsctl/certificates/certificate_run.h"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/model/identity_limits.h"
#include "tools/dwsctl/base/command.h"
#include "tools/dwsctl/certificates/certificate_request.h"

namespace dws::dwsctl {
namespace {

// Prints what was done for one certificate, as text or as a line of JSON.
Status Show(const CertificateFlags& flags, std::string_view what, const std::string& path,
            const std::string& pem, Console& console) {
  DWS_ASSIGN_OR_RETURN(const CertificateFacts facts, ReadCertificate(pem));
  std::string identities;
  for (const Identity& identity : facts.identities) {
    identities += (identities.empty() ? "" : " ") + ToUri(identity);
  }
  const int64_t now =
      std::chrono::duration_cast<std::chrono::seconds>(kSystemWallClock.Now().time_since_epoch())
          .count();
  const int64_t days = (facts.ends_unix_seconds - now) / 86'400;
  if (flags.json) {
    console.Out(nlohmann::json{{"path", path},
                               {"done", what},
                               {"identity", identities},
                               {"hosts", facts.hosts},
                               {"ends_unix_seconds", facts.ends_unix_seconds}}
                    .dump() +
                "\n");
  } else {
    console.Out(fmt::format("{}: {}{}{}, expires in {} days\n", path, what,
                            identities.empty() ? "" : ": ", identities, days));
  }
  return OkStatus();
}

Result<CertificatePem> MakeAuthorityAt(const std::string& folder, const CertificateFlags& flags,
                                       int days) {
  const AuthorityFiles files(folder);
  if (!flags.force) DWS_RETURN_IF_ERROR(CheckAbsent({files.cert, files.key}));
  DWS_RETURN_IF_ERROR(CheckKeyFolder(folder));
  DWS_ASSIGN_OR_RETURN(CertificatePem authority,
                       MakeAuthority(flags.job_id, days, kSystemWallClock.Now()));
  DWS_RETURN_IF_ERROR(WriteAuthority(folder, authority, flags.existing()));
  return authority;
}

// Checks that the files of all requests can be written.
Status CheckPlaces(const CertificateFlags& flags, const std::vector<CertificateRequest>& requests) {
  DWS_RETURN_IF_ERROR(CheckRequests(requests));
  for (const CertificateRequest& request : requests) {
    const IdentityFiles files(flags.out, request.identity);
    if (!flags.force) DWS_RETURN_IF_ERROR(CheckAbsent({files.cert, files.key, files.ca}));
    DWS_RETURN_IF_ERROR(CheckKeyFolders(files));
  }
  return OkStatus();
}

Status IssueAll(const CertificateFlags& flags, const CertificatePem& authority,
                const std::vector<CertificateRequest>& requests, Console& console) {
  std::vector<CertificatePem> made;
  for (const CertificateRequest& request : requests) {
    DWS_ASSIGN_OR_RETURN(CertificatePem certificate,
                         IssueCertificate(authority, request.identity, request.hosts, flags.days,
                                          kSystemWallClock.Now()));
    made.push_back(std::move(certificate));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    const IdentityFiles files(flags.out, requests[i].identity);
    DWS_RETURN_IF_ERROR(WriteIdentity(files, authority.cert_pem, made[i], flags.existing()));
    DWS_RETURN_IF_ERROR(Show(flags, "issued", files.cert, made[i].cert_pem, console));
  }
  return OkStatus();
}

Status RenewOne(const CertificateFlags& flags, const CertificatePem& authority,
                const std::string& path, Console& console) {
  DWS_RETURN_IF_ERROR(CheckNoLink(path));
  DWS_ASSIGN_OR_RETURN(const std::string pem, ReadPem(path));
  const auto facts = ReadCertificate(pem);
  if (!facts.ok()) return Annotate(facts.status(), path);
  const UnixTime now = kSystemWallClock.Now();
  const auto ends = UnixTime(std::chrono::seconds(facts->ends_unix_seconds));
  if (ends - now > std::chrono::hours(24) * flags.within_days) {
    return Show(flags, "not due", path, pem, console);
  }
  const auto renewed = RenewCertificate(authority, pem, flags.days, now);
  if (!renewed.ok()) return Annotate(renewed.status(), path);
  DWS_RETURN_IF_ERROR(WriteFile({.path = path, .content = *renewed}, Existing::kReplace));
  return Show(flags, "renewed", path, *renewed, console);
}

}  // namespace

Status RunAuthority(const CertificateFlags& flags, Console& console) {
  DWS_ASSIGN_OR_RETURN(const CertificatePem authority,
                       MakeAuthorityAt(flags.out, flags, flags.days));
  return Show(flags, fmt::format("the authority of job '{}'", flags.job_id),
              AuthorityFiles(flags.out).cert, authority.cert_pem, console);
}

Status RunIssue(const CertificateFlags& flags, Console& console) {
  DWS_ASSIGN_OR_RETURN(const Role role, RoleNamed(flags.role));
  DWS_RETURN_IF_ERROR(CheckName(role, flags.name));
  DWS_ASSIGN_OR_RETURN(const CertificatePem authority, ReadAuthority(flags.authority));
  DWS_ASSIGN_OR_RETURN(const std::string job_id, JobOfAuthority(authority.cert_pem));
  const Identity identity{.job_id = job_id, .role = role, .name = flags.name};
  const std::vector<CertificateRequest> request{{.identity = identity, .hosts = flags.hosts}};
  DWS_RETURN_IF_ERROR(CheckPlaces(flags, request));
  return IssueAll(flags, authority, request, console);
}

Status RunJob(const CertificateFlags& flags, Console& console) {
  std::vector<CertificateRequest> requests;
  const auto add = [&](Role role, const std::vector<std::string>& texts) -> Status {
    for (const std::string& text : texts) {
      DWS_ASSIGN_OR_RETURN(const auto some, ParseRequest(flags.job_id, role, text, flags.hosts));
      requests.insert(requests.end(), some.begin(), some.end());
    }
    return OkStatus();
  };
  DWS_RETURN_IF_ERROR(add(Role::kPublish, flags.publish));
  DWS_RETURN_IF_ERROR(add(Role::kReceive, flags.receive));
  DWS_RETURN_IF_ERROR(add(Role::kOperate, flags.operate));
  if (requests.empty()) {
    return InvalidArgumentError("nothing to issue: expected --publish, --receive or --operate");
  }
  DWS_RETURN_IF_ERROR(CheckPlaces(flags, requests));
  Result<CertificatePem> authority = ReadAuthority(flags.authority);
  if (absl::IsNotFound(authority.status())) {
    authority = MakeAuthorityAt(flags.authority, flags, limits::kAuthorityDaysDefault);
  }
  DWS_RETURN_IF_ERROR(authority.status());
  return IssueAll(flags, *authority, requests, console);
}

Status RunRenew(const CertificateFlags& flags, Console& console) {
  DWS_ASSIGN_OR_RETURN(const CertificatePem authority, ReadAuthority(flags.authority));
  Status first;  // a failure does not stop the renewal of the other files
  for (const std::string& path : flags.files) {
    const Status status = RenewOne(flags, authority, path, console);
    if (status.ok()) continue;
    if (!first.ok()) Fail(console, first);
    first = status;
  }
  return first;
}

}  // namespace dws::dwsctl
