#include "common/service/peers/peer_channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/security/credentials.h>

#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "common/service/grpc/grpc_credentials.h"
#include "common/service/grpc/grpc_runtime.h"
#include "common/service/peers/peer_address.h"

namespace dws {
namespace {

grpc::ChannelArguments Arguments(const std::string& server_name) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(limits::kGrpcMessageBytesMax);
  arguments.SetMaxSendMessageSize(limits::kGrpcMessageBytesMax);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
                   static_cast<int>(limits::kReconnectDelayMin.count()));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
                   static_cast<int>(limits::kReconnectDelayMax.count()));
  // A separate connection: a problem of one peer does not affect another.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Weights must not go through a proxy that environment variables name.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (!server_name.empty()) arguments.SetSslTargetNameOverride(server_name);
  return arguments;
}

}  // namespace

PeerChannel::PeerChannel(std::string address, PeerTls tls)
    : address_(std::move(address)), socket_(UnixPathOf(address_)), tls_(std::move(tls)) {
  KeepGrpcRunning();
  if (socket_.has_value()) {
    // All calls on this channel fail. Refresh replaces it once it knows who listens.
    channel_ = grpc::CreateCustomChannel(address_, nullptr, Arguments(""));
  } else {
    channel_ = Dial();
  }
}

std::shared_ptr<grpc::Channel> PeerChannel::Dial() const {
  // Never to a socket whose owner is not checked.
  DWS_CHECK(!socket_.has_value());
  const auto credentials = secure() ? MakeChannelCredentials(*tls_.credentials->current())
                                    : grpc::InsecureChannelCredentials();
  return grpc::CreateCustomChannel(address_, credentials, Arguments(tls_.server_name));
}

std::shared_ptr<grpc::Channel> PeerChannel::channel() const {
  MutexLock lock(mutex_);
  DWS_CHECK(channel_ != nullptr);
  return channel_;
}

Status PeerChannel::Refresh() {
  if (socket_.has_value()) return RefreshSocket();
  std::shared_ptr<grpc::Channel> made = Dial();
  MutexLock lock(mutex_);
  channel_ = std::move(made);
  return OkStatus();
}

// The kernel tells who listens at the other end of this connection. A check of the file before the
// connect would leave time to exchange the file.
Result<std::shared_ptr<grpc::Channel>> PeerChannel::ConnectSocket() const {
  DWS_CHECK(socket_.has_value());
  DWS_ASSIGN_OR_RETURN(UnixConnection connection, ConnectUnix(*socket_));
  DWS_RETURN_IF_ERROR(tls_.users.CheckServer(connection.peer, *socket_));
  return grpc::CreateCustomInsecureChannelFromFd(address_, connection.fd.release(), Arguments(""));
}

Status PeerChannel::RefreshSocket() {
  Result<std::shared_ptr<grpc::Channel>> made = ConnectSocket();
  MutexLock lock(mutex_);
  if (made.ok()) {
    channel_ = *std::move(made);
    refusal_.clear();
    return OkStatus();
  }
  const std::string reason(Message(made.status()));
  if (!absl::IsUnavailable(made.status()) && reason != refusal_) {
    LogWarning("peer_refused", {{"address", address_}, {"reason", reason}});
    refusal_ = reason;
  }
  return made.status();
}

Status PeerChannel::CheckVerified(const Peer& peer, std::string_view who) const {
  if (!secure() || peer.verified) return OkStatus();
  return MakeStatus(absl::StatusCode::kUnauthenticated,
                    fmt::format("{} at {} has shown no certificate", who, address_));
}

}  // namespace dws
