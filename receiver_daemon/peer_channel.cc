#include "receiver_daemon/peer_channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <utility>

#include "common/model/limits.h"
#include "common/service/grpc/grpc_credentials.h"
#include "common/service/grpc/grpc_runtime.h"

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
  // A connection of its own: one peer's trouble is not another's.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Weights do not go through the proxy of the environment.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (!server_name.empty()) arguments.SetSslTargetNameOverride(server_name);
  return arguments;
}

}  // namespace

PeerChannel::PeerChannel(std::string address, PeerTls tls)
    : address_(std::move(address)), tls_(std::move(tls)) {
  if (secure()) {
    Refresh();
  } else {
    channel_ = Connect(nullptr);
  }
}

std::shared_ptr<grpc::Channel> PeerChannel::Connect(const TlsMaterial* material) const {
  KeepGrpcRunning();
  const auto credentials =
      material == nullptr ? grpc::InsecureChannelCredentials() : MakeChannelCredentials(*material);
  return grpc::CreateCustomChannel(address_, credentials, Arguments(tls_.server_name));
}

std::shared_ptr<grpc::Channel> PeerChannel::channel() const {
  MutexLock lock(mutex_);
  return channel_;
}

void PeerChannel::Refresh() {
  if (!secure()) return;
  const std::shared_ptr<const TlsMaterial> material = tls_.credentials->current();
  MutexLock lock(mutex_);
  if (generation_ == material->generation) return;
  generation_ = material->generation;
  channel_ = Connect(material.get());
}

Status PeerChannel::CheckVerified(const Peer& peer, std::string_view who) const {
  if (!secure() || peer.verified) return OkStatus();
  return MakeStatus(absl::StatusCode::kUnauthenticated,
                    fmt::format("{} at {} has shown no certificate", who, address_));
}

}  // namespace dws
