// Who may call what over TCP: one table from the method to what its caller's certificate has to
// say, and what may be called where callers have no certificate. Pure. Unix sockets have no table:
// whom they let in, by the uid that the kernel names, may do everything that they serve.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/service/security/identity.h"

namespace dws {

enum class CallAccess {
  kAnyCertificate,  // that the CA signed
  kAnyRole,         // of the job
  kReceive,         // role receive of the job
  kOperate,         // role operate of the job
};

struct MethodAccess {
  std::string_view path;  // "/dws.v1.SyncService/Sync"; "/grpc.health.v1.Health/" is the service
  CallAccess access = CallAccess::kOperate;
};

// The table, for tests and documents.
std::span<const MethodAccess> AccessTable();

// What the other end of a connection has shown.
struct Peer {
  bool verified = false;  // TLS, with a certificate of the CA; without, it has no identity
  std::vector<Identity> identities;
};

// PERMISSION_DENIED, saying what the method needs and what the certificate has. UNIMPLEMENTED: a
// method that is not in the table.
Status CheckMethod(std::string_view path, std::string_view job_id,
                   std::span<const Identity> identities);

// The same on plain TCP, which --insecure allowed and where nobody can prove who he is. Everything
// but orders: PERMISSION_DENIED for a method that needs role operate, saying where it is taken.
Status CheckPlainMethod(std::string_view path);

// PERMISSION_DENIED unless `peer` is `wanted`. OK for a peer that is not verified: it came over a
// unix socket that let its user in, or over plain TCP, which --insecure allowed. `claim` names what
// the peer says: "receiver 'a'".
Status CheckPeer(const Peer& peer, const Identity& wanted, std::string_view claim);

// As CheckPeer, for any identity that has `role` in the job.
Status CheckPeerRole(const Peer& peer, std::string_view job_id, Role role, std::string_view claim);

}  // namespace dws
