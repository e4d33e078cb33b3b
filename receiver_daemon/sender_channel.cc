#include "receiver_daemon/sender_channel.h"

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
  // A connection of its own: one sender's trouble is not another's.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Weights do not go through the proxy of the environment.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (!server_name.empty()) arguments.SetSslTargetNameOverride(server_name);
  return arguments;
}

}  // namespace

SenderChannel::SenderChannel(std::string address, std::string job_id, SenderTls tls)
    : address_(std::move(address)), job_id_(std::move(job_id)), tls_(std::move(tls)) {
  if (tls_.credentials == nullptr) {
    stub_ = Connect(nullptr);
  } else {
    Refresh();
  }
}

std::shared_ptr<v1::SyncService::Stub> SenderChannel::Connect(const TlsMaterial* material) const {
  KeepGrpcRunning();
  const auto credentials =
      material == nullptr ? grpc::InsecureChannelCredentials() : MakeChannelCredentials(*material);
  return v1::SyncService::NewStub(
      grpc::CreateCustomChannel(address_, credentials, Arguments(tls_.server_name)));
}

std::shared_ptr<v1::SyncService::Stub> SenderChannel::stub() const {
  MutexLock lock(mutex_);
  return stub_;
}

void SenderChannel::Refresh() {
  if (tls_.credentials == nullptr) return;
  const std::shared_ptr<const TlsMaterial> material = tls_.credentials->current();
  MutexLock lock(mutex_);
  if (generation_ == material->generation) return;
  generation_ = material->generation;
  stub_ = Connect(material.get());
}

Status SenderChannel::CheckPublisher(const Peer& peer, uint32_t rank) const {
  if (tls_.credentials == nullptr) return OkStatus();
  if (!peer.verified) {  // CheckPeer lets it pass: it is made for plain listeners too
    return MakeStatus(absl::StatusCode::kUnauthenticated,
                      fmt::format("the sender at {} has shown no certificate", address_));
  }
  return CheckPeer(peer, SenderIdentity(job_id_, rank),
                   fmt::format("the sender of trainer rank {} at {}", rank, address_));
}

}  // namespace dws
