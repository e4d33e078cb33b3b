#include "receiver_daemon/group/leader_service.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "common/base/log/log.h"
#include "common/base/threads/mutex.h"
#include "common/model/limits.h"
#include "common/proto_convert/group_convert.h"
#include "common/service/grpc/grpc_credentials.h"
#include "common/service/grpc/grpc_status.h"
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

// The leader's end of one Join stream. Lifecycle: owns itself until OnDone; the group shares it.
class MemberStream final : public grpc::ServerBidiReactor<v1::GroupUp, v1::GroupDown>,
                           public MemberConnection {
 public:
  static MemberStream* Start(ReceiverName name, CommitGroup& group, Peer peer) {
    std::shared_ptr<MemberStream> stream(new MemberStream(std::move(name), group, std::move(peer)));
    stream->self_ = stream;
    stream->StartRead(&stream->up_);
    return stream.get();
  }

  void Welcome() override {
    v1::GroupDown message;
    v1::GroupWelcome& welcome = *message.mutable_welcome();
    welcome.set_receiver_id(name_.receiver_id);
    welcome.set_protocol_major(kProtocolMajor);
    welcome.set_protocol_minor(kProtocolMinor);
    Queue(std::move(message));
  }
  void Send(const GroupDown& message) override { Queue(ToProto(message)); }
  void Keepalive() override {
    {
      MutexLock lock(mutex_);
      if (writing_ || !queue_.empty()) return;  // every message shows that we live
    }
    v1::GroupDown message;
    message.mutable_keepalive();
    Queue(std::move(message));
  }
  void Close(const Status& reason) override {
    {
      MutexLock lock(mutex_);
      if (!close_reason_.has_value()) close_reason_ = reason;
    }
    Pump();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Close(OkStatus());
    if (const Status status = Hear(up_); !status.ok()) {
      LogWarning("group_stream_refused", {{"reason", Message(status)}});
      return Close(status);
    }
    StartRead(&up_);
  }
  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(mutex_);
      writing_ = false;
      if (!ok && !close_reason_.has_value()) close_reason_ = UnavailableError("the member hung up");
    }
    Pump();
  }
  void OnCancel() override { Close(CancelledError("the member hung up")); }
  void OnDone() override {
    {
      MutexLock lock(mutex_);
      finished_ = true;
    }
    if (connection_.has_value()) group_.OnMemberDisconnect(index_, *connection_);
    self_.reset();  // may be the last reference: nothing after this line
  }

 private:
  MemberStream(ReceiverName name, CommitGroup& group, Peer peer)
      : name_(std::move(name)), group_(group), peer_(std::move(peer)) {}

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
    DWS_ASSIGN_OR_RETURN(connection_, group_.OnMemberConnect(index_, hello.receiver_id(), self_));
    return OkStatus();
  }

  void Queue(v1::GroupDown message) {
    {
      MutexLock lock(mutex_);
      if (finished_ || close_reason_.has_value()) return;
      if (queue_.size() < limits::kGroupQueueMax) {
        queue_.push_back(std::move(message));
      } else {
        close_reason_ = ResourceExhaustedError("the member does not read its leader's messages");
      }
    }
    Pump();
  }

  // Starts the next write, or finishes, if neither is under way. Called without the lock.
  void Pump() {
    Status reason;
    bool finish = false;
    {
      MutexLock lock(mutex_);
      if (writing_ || finished_) return;
      if (close_reason_.has_value()) {
        finish = finished_ = true;
        reason = *close_reason_;
      } else if (!queue_.empty()) {
        writing_ = true;
        down_ = std::move(queue_.front());
        queue_.pop_front();
      } else {
        return;
      }
    }
    if (finish) {
      Finish(ToGrpc(reason));
    } else {
      StartWrite(&down_);
    }
  }

  const ReceiverName name_;
  CommitGroup& group_;
  const Peer peer_;
  std::shared_ptr<MemberStream> self_;  // until OnDone
  v1::GroupUp up_;
  v1::GroupDown down_;  // in flight
  // Used only by the reactions to reads, one at a time.
  uint32_t index_ = 0;
  std::optional<ConnectionId> connection_;

  Mutex mutex_;
  std::deque<v1::GroupDown> queue_ GUARDED_BY(mutex_);
  bool writing_ GUARDED_BY(mutex_) = false;
  bool finished_ GUARDED_BY(mutex_) = false;
  std::optional<Status> close_reason_ GUARDED_BY(mutex_);
};

}  // namespace

grpc::ServerBidiReactor<v1::GroupUp, v1::GroupDown>* LeaderService::Join(
    grpc::CallbackServerContext* context) {
  return MemberStream::Start(name_, group_, PeerOf(context->auth_context().get()));
}

}  // namespace dws
