// The gRPC channel to one sender: made with the certificates of the day, and checked for who is at
// its other end.
#pragma once

#include <memory>
#include <string>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/service/security/access.h"
#include "common/service/security/credentials.h"
#include "proto/sync.grpc.pb.h"

namespace dws {

// How a receiver meets senders.
struct SenderTls {
  std::shared_ptr<Credentials> credentials;  // null: plain
  std::string server_name;  // expected in their certificates; empty: the host that is dialled
};

// Threads: safe from any.
class SenderChannel {
 public:
  SenderChannel(std::string address, std::string job_id, SenderTls tls);

  // Of the newest channel. Calls on an older one end by themselves.
  std::shared_ptr<v1::SyncService::Stub> stub() const;

  // Makes a new channel if the certificates have changed since the last was made.
  void Refresh();

  // That the peer of a call, once something has arrived on it, publishes for `rank` of the job.
  // PERMISSION_DENIED; UNAUTHENTICATED: with credentials, a peer that is not verified.
  Status CheckPublisher(const Peer& peer, uint32_t rank) const;

 private:
  std::shared_ptr<v1::SyncService::Stub> Connect(const TlsMaterial* material) const;

  const std::string address_;
  const std::string job_id_;
  const SenderTls tls_;
  mutable Mutex mutex_;
  uint64_t generation_ GUARDED_BY(mutex_) = 0;  // of the certificates in use
  std::shared_ptr<v1::SyncService::Stub> stub_ GUARDED_BY(mutex_);
};

}  // namespace dws
