// Decides who may call which method over TCP. One table gives the role that the caller's
// certificate must have for each method; a second rule is for listeners whose callers have no
// certificate. Pure. Unix sockets have no table: a user whom they admit, by the uid that the kernel
// reports, may call every method that they serve.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/service/security/identity.h"

namespace dws {

enum class CallAccess {
  kAnyCertificate,  // one that the CA signed
  kAnyRole,         // any role of the job
  kReceive,         // role receive of the job
  kReadWeights,     // role receive of the job, or publish: other ranks' senders read shards
  kTrain,           // role train of the job
  kOperate,         // role operate of the job
};

// A row of the table.
struct MethodAccess {
  std::string_view path;  // "/dws.v1.SyncService/Sync"; "/grpc.health.v1.Health/" is the service
  CallAccess access = CallAccess::kOperate;
};

// The table, for tests and documents.
std::span<const MethodAccess> AccessTable();

// What the other end of a connection has proved about itself.
struct Peer {
  bool verified = false;  // the caller has a certificate of the CA; otherwise it has no identities
  std::vector<Identity> identities;
};

// PERMISSION_DENIED: the certificate lacks the role; the message says what the method needs and
// what the certificate has. UNIMPLEMENTED: the method is not in the table.
Status CheckMethod(std::string_view path, std::string_view job_id,
                   std::span<const Identity> identities);

// Like CheckMethod, for plain TCP, which --insecure allows and where callers cannot prove who they
// are. All methods of the table are allowed except orders: PERMISSION_DENIED for a method that
// needs role operate, saying where it is accepted.
Status CheckPlainMethod(std::string_view path);

// PERMISSION_DENIED unless `peer` has the identity `wanted`. OK for a peer that is not verified: it
// connected through a unix socket that admits its user, or through plain TCP, which --insecure
// allows. `claim` names what the peer claims to be: "receiver 'a'".
Status CheckPeer(const Peer& peer, const Identity& wanted, std::string_view claim);

// Like CheckPeer, for any identity that has `role` in the job.
Status CheckPeerRole(const Peer& peer, std::string_view job_id, Role role, std::string_view claim);

}  // namespace dws
