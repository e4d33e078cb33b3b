#include "common/sources/sender/sender_channel.h"

#include <utility>

namespace dws {

SenderChannel::SenderChannel(std::string address, std::string job_id, PeerTls tls, Role role)
    : job_id_(std::move(job_id)), role_(role), channel_(std::move(address), std::move(tls)) {}

std::shared_ptr<v1::SyncService::Stub> SenderChannel::stub() const {
  return v1::SyncService::NewStub(channel_.channel());
}

Status SenderChannel::CheckSender(const Peer& peer, uint32_t rank) const {
  if (!channel_.secure()) return OkStatus();
  // This check comes first: CheckPeer lets an unverified peer pass, because it serves plain
  // listeners, too.
  DWS_RETURN_IF_ERROR(channel_.CheckVerified(peer, "the sender"));
  return CheckPeer(peer, SenderIdentity(job_id_, rank, role_),
                   fmt::format("the sender of trainer rank {} at {}", rank, channel_.address()));
}

}  // namespace dws
