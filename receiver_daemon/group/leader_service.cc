#include "receiver_daemon/group/leader_service.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "common/proto_convert/group_convert.h"
#include "common/service/grpc/grpc_credentials.h"
#include "common/service/grpc/server_stream.h"
#include "common/service/protocol_version.h"

namespace dws {
namespace {

Status CheckHello(const v1::GroupHello& hello, const std::string& job_id, const GroupPlace& place) {
  // First: every refusal below quotes them.
  const size_t longest =
      std::max({hello.receiver_id().size(), hello.job_id().size(), hello.group_id().size()});
  if (longest > limits::kIdBytesMax || hello.receiver_id().empty()) {
    return InvalidArgumentError(
        "a GroupHello has ids of {} bytes (receiver), {} (job) and {} (group), expected 1 to {}",
        hello.receiver_id().size(), hello.job_id().size(), hello.group_id().size(),
        limits::kIdBytesMax);
  }
  if (hello.protocol_major() != kProtocolMajor) {
    return UnimplementedError(
        "receiver '{}' speaks protocol {}.{}, its leader {}.{}: upgrade the older one",
        hello.receiver_id(), hello.protocol_major(), hello.protocol_minor(), kProtocolMajor,
        kProtocolMinor);
  }
  if (hello.job_id() != job_id || hello.group_id() != place.group_id) {
    return InvalidArgumentError(
        "receiver '{}' belongs to group '{}' of job '{}', this is the leader of group '{}' of job "
        "'{}'",
        hello.receiver_id(), hello.group_id(), hello.job_id(), place.group_id, job_id);
  }
  if (hello.member_count() != place.member_count) {
    return FailedPreconditionError(
        "receiver '{}' says that group '{}' has {} members, its leader says {}: --group-members "
        "must be the same on all",
        hello.receiver_id(), place.group_id, hello.member_count(), place.member_count);
  }
  return OkStatus();
}

// The leader's end of one Join stream. Lifecycle: owns itself until its end; the group shares it.
class MemberStream final : public ServerStream<v1::GroupUp, v1::GroupDown>,
                           public MemberConnection,
                           public std::enable_shared_from_this<MemberStream> {
 public:
  static MemberStream* Start(ReceiverName name, CommitGroup& group, Peer peer) {
    return Run(
        std::shared_ptr<MemberStream>(new MemberStream(std::move(name), group, std::move(peer))));
  }

  void Welcome() override {
    v1::GroupDown message;
    v1::GroupWelcome& welcome = *message.mutable_welcome();
    welcome.set_receiver_id(name_.receiver_id);
    welcome.set_protocol_major(kProtocolMajor);
    welcome.set_protocol_minor(kProtocolMinor);
    ServerStream::Send(std::move(message));
  }
  void Send(const GroupDown& message) override { ServerStream::Send(ToProto(message)); }
  void Keepalive() override {
    if (!quiet()) return;  // every message shows that we live
    v1::GroupDown message;
    message.mutable_keepalive();
    ServerStream::Send(std::move(message));
  }
  void Close(const Status& reason) override { EndNow(reason); }

 private:
  MemberStream(ReceiverName name, CommitGroup& group, Peer peer)
      : ServerStream("the member", limits::kGroupQueueMax),
        name_(std::move(name)),
        group_(group),
        peer_(std::move(peer)) {}

  Status OnMessage(const v1::GroupUp& message) override {
    const Status status = Hear(message);
    if (!status.ok()) LogWarning("group_stream_refused", {{"reason", Message(status)}});
    return status;
  }

  Status Hear(const v1::GroupUp& message) {
    if (connection_.has_value() == message.has_hello()) {
      return InvalidArgumentError(
          "expected GroupHello as the first message of a Join stream, and only there");
    }
    if (message.has_hello()) return HearHello(message.hello());
    DWS_ASSIGN_OR_RETURN(const std::optional<GroupUp> up, FromProto(message));
    if (up.has_value()) group_.OnUp(index_, *connection_, *up);
    return OkStatus();
  }

  Status HearHello(const v1::GroupHello& hello) {
    DWS_RETURN_IF_ERROR(CheckHello(hello, name_.job_id, group_.place()));
    DWS_RETURN_IF_ERROR(CheckPeer(peer_, ReceiverIdentity(hello.job_id(), hello.receiver_id()),
                                  fmt::format("receiver '{}'", hello.receiver_id())));
    index_ = hello.member_index();
    DWS_ASSIGN_OR_RETURN(connection_,
                         group_.OnMemberConnect(index_, hello.receiver_id(), shared_from_this()));
    return OkStatus();
  }

  void OnEnd(const Status&) override {
    if (connection_.has_value()) group_.OnMemberDisconnect(index_, *connection_);
  }

  const ReceiverName name_;
  CommitGroup& group_;
  const Peer peer_;
  // Used only by the reactions, one at a time.
  uint32_t index_ = 0;
  std::optional<ConnectionId> connection_;
};

}  // namespace

grpc::ServerBidiReactor<v1::GroupUp, v1::GroupDown>* LeaderService::Join(
    grpc::CallbackServerContext* context) {
  return MemberStream::Start(name_, group_, PeerOf(context->auth_context().get()));
}

}  // namespace dws
