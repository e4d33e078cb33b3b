#include "receiver_daemon/group/leader_link.h"

#include <utility>

#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "common/proto_convert/group_convert.h"
#include "common/service/protocol_version.h"

namespace dws {

LeaderLink::LeaderLink(ReceiverName name, PeerTls tls, CommitGroup& group, const Clock& clock)
    : name_(std::move(name)),
      group_(group),
      channel_(group.place().leader_address, std::move(tls)),
      stream_(
          limits::kGroupQueueMax, clock,
          {.prepare = [this] { return channel_.Refresh(); },
           .open =
               [this](auto* context, auto* reactor) {
                 v1::GroupService::NewStub(channel_.channel())->async()->Join(context, reactor);
               },
           .hello = [this] { return Hello(); },
           .on_message = [this](const GroupStream::CallPtr& on, const v1::GroupDown& message,
                                const Peer& peer, bool) { return OnMessage(on, message, peer); },
           .on_done = [this](const Status& reason, bool lost) { OnDone(reason, lost); }}) {}

v1::GroupUp LeaderLink::Hello() const {
  v1::GroupUp message;
  v1::GroupHello& hello = *message.mutable_hello();
  Introduce(name_, hello);
  hello.set_group_id(group_.place().group_id);
  hello.set_member_index(group_.place().index);
  hello.set_member_count(group_.place().member_count);
  return message;
}

Status LeaderLink::OnMessage(const GroupStream::CallPtr& call, const v1::GroupDown& message,
                             const Peer& peer) {
  if (message.has_welcome() == connection_.has_value()) {
    return InvalidArgumentError("expected a welcome as the leader's first message, and only there");
  }
  if (message.has_welcome()) return OnWelcome(call, message.welcome(), peer);
  DWS_ASSIGN_OR_RETURN(const std::optional<GroupDown> down, FromProto(message));
  if (down.has_value()) group_.OnDown(*connection_, *down);
  return OkStatus();
}

Status LeaderLink::OnWelcome(const GroupStream::CallPtr& call, const v1::GroupWelcome& welcome,
                             const Peer& peer) {
  if (welcome.protocol_major() != kProtocolMajor) {
    return UnimplementedError(
        "the leader speaks protocol {}.{}, this receiver {}.{}: upgrade the older one",
        welcome.protocol_major(), welcome.protocol_minor(), kProtocolMajor, kProtocolMinor);
  }
  DWS_RETURN_IF_ERROR(channel_.CheckVerified(peer, "the leader"));
  DWS_RETURN_IF_ERROR(CheckPeerRole(peer, name_.job_id, Role::kReceive,
                                    fmt::format("the leader at {}", channel_.address())));
  LogInfo("group_leader_connected",
          {{"address", channel_.address()},
           {"receiver", welcome.receiver_id().substr(0, limits::kIdBytesMax)}});
  stream_.Accepted();
  // Weak: the group drops it when the stream is done.
  connection_ = group_.OnLeaderConnect([weak = std::weak_ptr(call)](const GroupUp& message) {
    const GroupStream::CallPtr on = weak.lock();
    if (on == nullptr || on->Send(ToProto(message))) return;
    on->Cancel(ResourceExhaustedError("it does not read this member's messages"));
  });
  return OkStatus();
}

void LeaderLink::OnDone(const Status& reason, bool lost) {
  if (lost && connection_.has_value()) {
    LogWarning("group_leader_disconnected",
               {{"address", channel_.address()}, {"reason", Message(reason)}});
  }
  Status told = reason;
  if (!connection_.has_value() && absl::IsUnimplemented(reason)) {
    told = UnimplementedError(
        "{}: --group-leader has to be the --listen of the receiver with --group-index=0, or on its "
        "host unix: and its --socket, of the same version",
        Message(reason));
  }
  // Logged once, not at every attempt. A leader that does not answer has not refused.
  const std::string refusal =
      connection_.has_value() || absl::IsUnavailable(told) ? "" : std::string(Message(told));
  if (!refusal.empty() && refusal != refusal_) {
    LogWarning("group_leader_refused", {{"address", channel_.address()}, {"reason", refusal}});
  }
  refusal_ = refusal;
  group_.OnLeaderDisconnect(std::exchange(connection_, std::nullopt), told);
}

}  // namespace dws
