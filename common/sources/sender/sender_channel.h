// The gRPC channel to one sender, which checks who is at its other end.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/service/peers/peer_channel.h"
#include "common/service/security/access.h"
#include "proto/sync.grpc.pb.h"

namespace dws {

// Threads: safe from any.
class SenderChannel {
 public:
  // `role`: as which the sender identifies itself, kPublish or kTrain.
  SenderChannel(std::string address, std::string job_id, PeerTls tls, Role role = Role::kPublish);

  // The newest channel. Calls on an older one end by themselves.
  std::shared_ptr<grpc::Channel> channel() const { return channel_.channel(); }
  std::shared_ptr<v1::SyncService::Stub> stub() const;

  // See PeerChannel.
  Status Refresh() { return channel_.Refresh(); }

  // Checks that the peer of a call is the sender of `rank` of the job. Called once something has
  // arrived on the call. PERMISSION_DENIED: it does not. UNAUTHENTICATED: there are credentials,
  // and the peer is not verified.
  Status CheckSender(const Peer& peer, uint32_t rank) const;

 private:
  const std::string job_id_;
  const Role role_;
  PeerChannel channel_;
};

}  // namespace dws
