#include "common/service/security/access.h"

#include <algorithm>
#include <array>
#include <string>

#include "common/model/limits.h"

namespace dws {
namespace {

constexpr std::array kTable = {
    MethodAccess{"/dws.v1.SyncService/Sync", CallAccess::kReceive},
    MethodAccess{"/dws.v1.SyncService/Describe", CallAccess::kReadWeights},
    MethodAccess{"/dws.v1.SyncService/Fetch", CallAccess::kReadWeights},
    MethodAccess{"/dws.v1.SyncService/FetchFull", CallAccess::kReadWeights},
    MethodAccess{"/dws.v1.SyncService/OpenSnapshot", CallAccess::kReadWeights},
    MethodAccess{"/dws.v1.SyncService/OpenFabric", CallAccess::kReadWeights},
    MethodAccess{"/dws.v1.SyncService/OpenGpuCopies", CallAccess::kReceive},
    MethodAccess{"/dws.v1.SyncService/Peers", CallAccess::kReceive},
    MethodAccess{"/dws.v1.TrainService/Train", CallAccess::kTrain},
    MethodAccess{"/dws.v1.TrainService/FetchPiece", CallAccess::kTrain},
    MethodAccess{"/dws.v1.TrainService/OpenOutbox", CallAccess::kTrain},
    MethodAccess{"/dws.v1.TrainService/OpenHostCopy", CallAccess::kTrain},
    MethodAccess{"/dws.v1.PeerObjectService/Fetch", CallAccess::kTrain},
    MethodAccess{"/dws.v1.GroupService/Join", CallAccess::kReceive},
    MethodAccess{"/dws.v1.AdminService/Status", CallAccess::kAnyRole},
    MethodAccess{"/dws.v1.AdminService/Watch", CallAccess::kAnyRole},
    MethodAccess{"/dws.v1.AdminService/Plan", CallAccess::kOperate},
    MethodAccess{"/dws.v1.AdminService/Verify", CallAccess::kOperate},
    MethodAccess{"/dws.v1.AdminService/Resync", CallAccess::kOperate},
    MethodAccess{"/dws.v1.AdminService/Drain", CallAccess::kOperate},
    MethodAccess{"/dws.v1.AdminService/Evict", CallAccess::kOperate},
    MethodAccess{"/dws.v1.AdminService/ForgetStream", CallAccess::kOperate},
    MethodAccess{"/dws.v1.AdminService/Boundary", CallAccess::kOperate},
    MethodAccess{"/grpc.health.v1.Health/", CallAccess::kAnyCertificate},
    MethodAccess{"/grpc.reflection.v1alpha.ServerReflection/", CallAccess::kAnyCertificate},
};

// UNIMPLEMENTED: other machines cannot call this method. Methods that are not in the table are
// refused, so that a new method is closed until somebody decides who may call it.
Result<CallAccess> AccessOf(std::string_view path) {
  const auto row = std::find_if(kTable.begin(), kTable.end(), [path](const MethodAccess& entry) {
    return entry.path.ends_with('/') ? path.starts_with(entry.path) : path == entry.path;
  });
  if (row != kTable.end()) return row->access;
  return UnimplementedError("this daemon has no method {} for other machines",
                            path.substr(0, limits::kIdBytesMax));
}

Status PermissionDenied(std::string_view message) {
  return MakeStatus(absl::StatusCode::kPermissionDenied, message);
}

// "no identity", or the URIs.
std::string Describe(std::span<const Identity> identities) {
  std::string text;
  for (const Identity& identity : identities) {
    text += text.empty() ? "" : ", ";
    text += ToUri(identity);
  }
  return text.empty() ? "no dws:// identity" : text;
}

bool Has(std::span<const Identity> identities, std::string_view job_id, Role role) {
  return std::any_of(identities.begin(), identities.end(), [&](const Identity& identity) {
    return identity.job_id == job_id && identity.role == role;
  });
}

bool IsGranted(CallAccess access, std::string_view job_id, std::span<const Identity> identities) {
  switch (access) {
    case CallAccess::kAnyCertificate:
      return true;
    case CallAccess::kAnyRole:
      return std::any_of(identities.begin(), identities.end(),
                         [job_id](const Identity& identity) { return identity.job_id == job_id; });
    case CallAccess::kReceive:
      return Has(identities, job_id, Role::kReceive);
    case CallAccess::kReadWeights:
      return Has(identities, job_id, Role::kReceive) || Has(identities, job_id, Role::kPublish);
    case CallAccess::kTrain:
      return Has(identities, job_id, Role::kTrain);
    case CallAccess::kOperate:
      return Has(identities, job_id, Role::kOperate);
  }
  return false;
}

std::string_view NeededRole(CallAccess access) {
  switch (access) {
    case CallAccess::kAnyCertificate:
    case CallAccess::kAnyRole:
      return "any role";
    case CallAccess::kReceive:
      return "role receive";
    case CallAccess::kReadWeights:
      return "role receive or publish";
    case CallAccess::kTrain:
      return "role train";
    case CallAccess::kOperate:
      return "role operate";
  }
  return "";
}

}  // namespace

std::span<const MethodAccess> AccessTable() { return kTable; }

Status CheckMethod(std::string_view path, std::string_view job_id,
                   std::span<const Identity> identities) {
  DWS_ASSIGN_OR_RETURN(const CallAccess access, AccessOf(path));
  if (IsGranted(access, job_id, identities)) return OkStatus();
  return PermissionDenied(
      fmt::format("{} needs a certificate with {} of job '{}', the one shown has {}", path,
                  NeededRole(access), job_id, Describe(identities)));
}

Status CheckPlainMethod(std::string_view path) {
  DWS_ASSIGN_OR_RETURN(const CallAccess access, AccessOf(path));
  if (access != CallAccess::kOperate) return OkStatus();
  return PermissionDenied(
      fmt::format("{} is an order, and orders are not accepted over plain TCP, where callers "
                  "cannot prove their identity: use the daemon's unix socket (dwsctl --socket), or "
                  "TLS with a certificate of role operate",
                  path));
}

Status CheckPeer(const Peer& peer, const Identity& wanted, std::string_view claim) {
  if (!peer.verified ||
      std::find(peer.identities.begin(), peer.identities.end(), wanted) != peer.identities.end()) {
    return OkStatus();
  }
  return PermissionDenied(fmt::format("{} needs a certificate with {}, the one shown has {}", claim,
                                      ToUri(wanted), Describe(peer.identities)));
}

Status CheckPeerRole(const Peer& peer, std::string_view job_id, Role role, std::string_view claim) {
  if (!peer.verified || Has(peer.identities, job_id, role)) return OkStatus();
  return PermissionDenied(
      fmt::format("{} needs a certificate with role {} of job '{}', the one "
                  "shown has {}",
                  claim, ToString(role), job_id, Describe(peer.identities)));
}

}  // namespace dws
