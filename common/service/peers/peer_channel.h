// The gRPC channel to another daemon: over TCP with the current certificates, or over the unix
// socket of a daemon on this host, once its owner is checked.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/service/security/access.h"
#include "common/service/security/credentials.h"
#include "common/service/sockets/unix_socket.h"

namespace dws {

// How a receiver authenticates other daemons.
struct PeerTls {
  std::shared_ptr<Credentials> credentials;  // for TCP; null: without TLS
  std::string server_name;  // expected in their certificates; empty: the dialled host
  AllowedUsers users = {};  // whose unix sockets are trusted, see CheckServer
};

// Threads: safe from any.
class PeerChannel {
 public:
  // `address`: one that CheckPeerAddress accepts.
  PeerChannel(std::string address, PeerTls tls);

  const std::string& address() const { return address_; }
  // True if certificates secure the channel.
  bool secure() const { return !socket_.has_value() && tls_.credentials != nullptr; }

  // The newest channel. Calls on an older one run to their end. Over a unix socket, calls made
  // before the first successful Refresh fail.
  std::shared_ptr<grpc::Channel> channel() const;

  // Called before each stream, which then has a connection of its own: by now somebody else may
  // answer at the address, with other certificates. Over TCP, makes a new channel, and never fails.
  // Over a unix socket, connects. UNAVAILABLE: nobody listens. PERMISSION_DENIED: another user has
  // taken the path, or we may not connect. A refusal is logged once until its reason changes.
  Status Refresh();

  // UNAUTHENTICATED: the channel is secure and the peer is not verified. `who` names it. What a
  // verified peer may do is checked by CheckPeer and CheckPeerRole.
  Status CheckVerified(const Peer& peer, std::string_view who) const;

 private:
  std::shared_ptr<grpc::Channel> Dial() const;
  Result<std::shared_ptr<grpc::Channel>> ConnectSocket() const;
  Status RefreshSocket();

  const std::string address_;
  const std::optional<std::string> socket_;  // its path; nullopt: TCP
  const PeerTls tls_;
  mutable Mutex mutex_;
  std::string refusal_ GUARDED_BY(mutex_);  // the last one logged; empty after a success
  std::shared_ptr<grpc::Channel> channel_ GUARDED_BY(mutex_);
};

}  // namespace dws
