#include "tools/dwsctl/certificates/certificate_request.h"

#include <charconv>
#include <optional>
#include <set>
#include <string_view>

#include "common/model/identity_limits.h"
#include "common/model/limits.h"
#include "common/service/security/certificate_maker.h"

namespace dws::dwsctl {
namespace {

std::optional<uint32_t> Rank(std::string_view text) {
  uint32_t rank = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && rank < limits::kWorldSizeMax ? std::optional(rank) : std::nullopt;
}

// The names in `text`, the part of a request before the '@'.
Result<std::vector<std::string>> Names(Role role, const std::string& text) {
  if (role != Role::kPublish) return std::vector<std::string>{text};
  const size_t dash = text.find('-');
  const auto first = Rank(text.substr(0, dash));
  const auto last = dash == std::string::npos ? first : Rank(text.substr(dash + 1));
  if (!first.has_value() || !last.has_value() || *last < *first) {
    return InvalidArgumentError(
        "'{}' is not a trainer rank: expected a number from 0 to {}, or two with '-' between", text,
        limits::kWorldSizeMax - 1);
  }
  std::vector<std::string> names;
  for (uint32_t rank = *first; rank <= *last; ++rank) names.push_back(std::to_string(rank));
  return names;
}

}  // namespace

Status CheckName(Role role, const std::string& name) {
  if (role != Role::kPublish) return OkStatus();
  const std::optional<uint32_t> rank = Rank(name);
  if (rank.has_value() && std::to_string(*rank) == name) return OkStatus();
  return InvalidArgumentError("'{}' is not a trainer rank: expected a number from 0 to {}", name,
                              limits::kWorldSizeMax - 1);
}

Status CheckRequests(const std::vector<CertificateRequest>& requests) {
  if (requests.size() > limits::kCertificatesMax) {
    return InvalidArgumentError("{} certificates, expected at most {} at once", requests.size(),
                                limits::kCertificatesMax);
  }
  std::set<std::string> seen;
  for (const auto& [identity, hosts] : requests) {
    if (seen.insert(ToUri(identity)).second) continue;
    return InvalidArgumentError(
        "--{} names '{}' twice, expected one certificate for each: name it once, with all its "
        "hosts",
        ToString(identity.role), identity.name);
  }
  return OkStatus();
}

Result<Role> RoleNamed(const std::string& text) {
  for (const Role role : {Role::kPublish, Role::kReceive, Role::kOperate}) {
    if (text == ToString(role)) return role;
  }
  return InvalidArgumentError("'{}' is not a role: expected publish, receive or operate", text);
}

Result<std::vector<CertificateRequest>> ParseRequest(const std::string& job_id, Role role,
                                                     const std::string& text,
                                                     const std::vector<std::string>& hosts) {
  const size_t at = text.find('@');
  std::vector<std::string> all;
  for (size_t begin = at; begin != std::string::npos;) {
    const size_t comma = text.find(',', begin + 1);
    all.push_back(text.substr(begin + 1, comma - begin - 1));
    begin = comma;
  }
  all.insert(all.end(), hosts.begin(), hosts.end());
  for (const std::string& host : all) {
    DWS_RETURN_IF_ERROR(Annotate(CheckHost(host), fmt::format("--{} {}", ToString(role), text)));
  }
  DWS_ASSIGN_OR_RETURN(const auto names, Names(role, text.substr(0, at)));
  std::vector<CertificateRequest> requests;
  for (const std::string& name : names) {
    const Identity identity{.job_id = job_id, .role = role, .name = name};
    DWS_RETURN_IF_ERROR(ParseIdentity(ToUri(identity)).status());
    requests.push_back({.identity = identity, .hosts = all});
  }
  return requests;
}

}  // namespace dws::dwsctl
