// The gRPC channel to another daemon: made with the certificates of the day, or over the socket of
// a daemon of this host, once it is known whose that is.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/service/security/access.h"
#include "common/service/security/credentials.h"
#include "common/service/sockets/unix_socket.h"

namespace dws {

// How a receiver meets other daemons.
struct PeerTls {
  std::shared_ptr<Credentials> credentials;  // of TCP; null: plain
  std::string server_name;  // expected in their certificates; empty: the host that is dialled
  AllowedUsers users = {};  // whose unix sockets are believed, see CheckServer
};

// Threads: safe from any.
class PeerChannel {
 public:
  // `address`: as CheckPeerAddress wants it.
  PeerChannel(std::string address, PeerTls tls);

  const std::string& address() const { return address_; }
  // By certificates.
  bool secure() const { return !socket_.has_value() && tls_.credentials != nullptr; }

  // The newest. Calls on an older one end by themselves, and those made before the first Refresh
  // fail.
  std::shared_ptr<grpc::Channel> channel() const;

  // Before each stream. Over TCP it makes a new channel if the certificates have changed since the
  // last was made. Over a unix socket it connects: UNAVAILABLE: nobody is there. PERMISSION_DENIED:
  // another user has taken the path, or we may not connect; said once in the log.
  Status Refresh();

  // UNAUTHENTICATED: with credentials, a peer that is not verified. `who` names it. What a verified
  // one may say is for CheckPeer and CheckPeerRole.
  Status CheckVerified(const Peer& peer, std::string_view who) const;

 private:
  std::shared_ptr<grpc::Channel> Dial(const TlsMaterial* material) const;
  Result<std::shared_ptr<grpc::Channel>> ConnectSocket() const;
  Status RefreshSocket();

  const std::string address_;
  const std::optional<std::string> socket_;  // its path; nullopt: TCP
  const PeerTls tls_;
  mutable Mutex mutex_;
  uint64_t generation_ GUARDED_BY(mutex_) = 0;  // of the certificates in use
  std::string refusal_ GUARDED_BY(mutex_);      // the last, while it lasts
  std::shared_ptr<grpc::Channel> channel_ GUARDED_BY(mutex_);
};

}  // namespace dws
