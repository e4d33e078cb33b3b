// The gRPC channel to another daemon: made with the certificates of the day.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>
#include <string_view>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/service/security/access.h"
#include "common/service/security/credentials.h"

namespace dws {

// How a receiver meets other daemons.
struct PeerTls {
  std::shared_ptr<Credentials> credentials;  // null: plain
  std::string server_name;  // expected in their certificates; empty: the host that is dialled
};

// Threads: safe from any.
class PeerChannel {
 public:
  PeerChannel(std::string address, PeerTls tls);

  const std::string& address() const { return address_; }
  bool secure() const { return tls_.credentials != nullptr; }

  // The newest. Calls on an older one end by themselves.
  std::shared_ptr<grpc::Channel> channel() const;

  // Makes a new one if the certificates have changed since the last was made.
  void Refresh();

  // UNAUTHENTICATED: with credentials, a peer that is not verified. `who` names it. What a verified
  // one may say is for CheckPeer and CheckPeerRole.
  Status CheckVerified(const Peer& peer, std::string_view who) const;

 private:
  std::shared_ptr<grpc::Channel> Connect(const TlsMaterial* material) const;

  const std::string address_;
  const PeerTls tls_;
  mutable Mutex mutex_;
  uint64_t generation_ GUARDED_BY(mutex_) = 0;  // of the certificates in use
  std::shared_ptr<grpc::Channel> channel_ GUARDED_BY(mutex_);
};

}  // namespace dws
