#include "receiver_daemon/group/leader_link.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/model/limits.h"
#include "common/proto_convert/group_convert.h"
#include "common/service/protocol_version.h"

namespace dws {

LeaderLink::LeaderLink(Identity identity, PeerTls tls, CommitGroup& group, const Clock& clock)
    : identity_(std::move(identity)),
      group_(group),
      clock_(clock),
      channel_(group.place().leader_address, std::move(tls)),
      next_attempt_(clock.Now()),
      delay_(limits::kReconnectDelayMin) {}

v1::GroupUp LeaderLink::Hello() const {
  v1::GroupUp message;
  v1::GroupHello& hello = *message.mutable_hello();
  hello.set_job_id(identity_.job_id);
  hello.set_receiver_id(identity_.receiver_id);
  hello.set_protocol_major(kProtocolMajor);
  hello.set_protocol_minor(kProtocolMinor);
  hello.set_group_id(group_.place().group_id);
  hello.set_member_index(group_.place().index);
  hello.set_member_count(group_.place().member_count);
  return message;
}

void LeaderLink::Tick() {
  GroupCall::Ptr silent;
  {
    MutexLock lock(mutex_);
    if (stopping_ || starting_) return;
    const TimePoint now = clock_.Now();
    if (call_ != nullptr) {
      if (now - last_heard_ < limits::kKeepaliveTimeout) return;
      silent = call_;
      last_heard_ = now;  // cancelled once
    } else {
      if (now < next_attempt_) return;
      starting_ = true;
      done_early_ = false;
      last_heard_ = now;
    }
  }
  if (silent != nullptr) {
    return silent->Cancel(
        UnavailableError("it was silent for {} s", limits::kKeepaliveTimeout.count()));
  }
  channel_.Refresh();
  const auto stub = v1::GroupService::NewStub(channel_.channel());
  const GroupCall::Ptr call = GroupCall::Start(
      [&stub](auto* context, auto* reactor) { stub->async()->Join(context, reactor); }, Hello(),
      limits::kGroupQueueMax,
      {.on_message = [this](const GroupCall::Ptr& on, const v1::GroupDown& message,
                            const Peer& peer) { return OnMessage(on, message, peer); },
       .on_done = [this](const Status& reason) { OnDone(reason); }});
  bool stopping = false;
  {
    MutexLock lock(mutex_);
    starting_ = false;
    if (!done_early_) call_ = call;
    stopping = stopping_;
    done_.NotifyAll();
  }
  if (stopping) call->Cancel(CancelledError("the receiver is shutting down"));
}

Status LeaderLink::OnMessage(const GroupCall::Ptr& call, const v1::GroupDown& message,
                             const Peer& peer) {
  {
    MutexLock lock(mutex_);
    last_heard_ = clock_.Now();
  }
  if (message.has_welcome() == connection_.has_value()) {
    return InvalidArgumentError("the first message of a leader is its welcome, and only the first");
  }
  if (message.has_welcome()) return OnWelcome(call, message.welcome(), peer);
  DWS_ASSIGN_OR_RETURN(const std::optional<GroupDown> down, FromProto(message));
  if (down.has_value()) group_.OnDown(*connection_, *down);
  return OkStatus();
}

Status LeaderLink::OnWelcome(const GroupCall::Ptr& call, const v1::GroupWelcome& welcome,
                             const Peer& peer) {
  if (welcome.protocol_major() != kProtocolMajor) {
    return UnimplementedError(
        "the leader speaks protocol {}.{}, this receiver {}.{}: upgrade the older one",
        welcome.protocol_major(), welcome.protocol_minor(), kProtocolMajor, kProtocolMinor);
  }
  DWS_RETURN_IF_ERROR(channel_.CheckVerified(peer, "the leader"));
  DWS_RETURN_IF_ERROR(CheckPeerRole(peer, identity_.job_id, Role::kReceive,
                                    fmt::format("the leader at {}", channel_.address())));
  LogInfo("group_leader_connected",
          {{"address", channel_.address()},
           {"receiver", welcome.receiver_id().substr(0, limits::kIdBytesMax)}});
  {
    MutexLock lock(mutex_);
    delay_ = limits::kReconnectDelayMin;
  }
  // Weak: the group lets go of it when the stream is done.
  connection_ = group_.OnLeaderConnect([weak = std::weak_ptr(call)](const GroupUp& message) {
    const GroupCall::Ptr on = weak.lock();
    if (on == nullptr || on->Send(ToProto(message))) return;
    on->Cancel(ResourceExhaustedError("it does not read what this member says"));
  });
  return OkStatus();
}

void LeaderLink::OnDone(const Status& reason) {
  const std::optional<ConnectionId> connection = std::exchange(connection_, std::nullopt);
  bool stopping = false;
  {
    MutexLock lock(mutex_);
    stopping = stopping_;
  }
  if (connection.has_value() && !stopping) {
    LogWarning("group_leader_disconnected",
               {{"address", channel_.address()}, {"reason", Message(reason)}});
  }
  group_.OnLeaderDisconnect(connection, reason);
  MutexLock lock(mutex_);
  call_.reset();
  done_early_ = starting_;
  // Fenced by a twin, which this would fence in turn: slowly then.
  if (absl::IsAborted(reason)) delay_ = limits::kReconnectDelayMax;
  next_attempt_ = clock_.Now() + delay_;
  delay_ = std::min<Duration>(delay_ * 2, limits::kReconnectDelayMax);
  done_.NotifyAll();
}

void LeaderLink::Stop() {
  GroupCall::Ptr call;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    call = call_;
  }
  if (call != nullptr) call->Cancel(CancelledError("the receiver is shutting down"));
  call.reset();
  MutexLock lock(mutex_);
  while (starting_ || call_ != nullptr) done_.Wait(mutex_);
}

}  // namespace dws
