#include "sender_daemon/serve/sync_stream.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log/log.h"
#include "common/base/utf8.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/quantise/view.h"
#include "common/service/grpc/grpc_status.h"
#include "common/service/protocol_version.h"
#include "sender_daemon/serve/sync_messages.h"

namespace dws {
SyncStream* SyncStream::Start(const Parts& parts, Peer peer) {
  std::shared_ptr<SyncStream> stream(new SyncStream(parts, std::move(peer)));
  stream->self_ = stream;
  stream->StartRead(&stream->up_);
  return stream.get();
}

void SyncStream::WelcomeDue() {
  {
    MutexLock lock(mutex_);
    welcome_due_ = announce_due_ = true;
  }
  Pump();
}

void SyncStream::AnnounceDue() {
  {
    MutexLock lock(mutex_);
    announce_due_ = true;
  }
  Pump();
}

void SyncStream::ReplacingDue() {
  {
    MutexLock lock(mutex_);
    replacing_due_ = true;
  }
  Pump();
}

void SyncStream::KeepaliveDue() {
  {
    MutexLock lock(mutex_);
    keepalive_due_ = true;
  }
  Pump();
}

void SyncStream::Close(const Status& reason) {
  {
    MutexLock lock(mutex_);
    if (!close_reason_.has_value()) close_reason_ = reason;
  }
  Pump();
}

void SyncStream::Say(v1::SyncDown message) {
  {
    MutexLock lock(mutex_);
    said_.push_back(std::move(message));
    // A receiver that misses messages would miss broadcasts that the other members wait in.
    if (said_.size() > limits::kBroadcastQueueMax && !close_reason_.has_value()) {
      close_reason_ =
          ResourceExhaustedError("{} messages wait for the receiver to read them", said_.size());
    }
  }
  Pump();
}

struct SyncStream::Due {
  enum class What : uint8_t {
    kNothing,
    kWelcome,
    kSaid,
    kRefineReply,
    kAnnounce,
    kReplacing,
    kKeepalive,
    kFinish
  };
  What what = What::kNothing;
  RankStatePtr state;  // under the lock: never older than what set a flag
  ConnectionId connection;
  Status reason;  // to finish with
};

SyncStream::Due SyncStream::TakeDue() {
  MutexLock lock(mutex_);
  if (writing_ || finished_) return {};
  Due due{.state = hub_.Current(view_)};
  const bool served = due.state != nullptr;
  if (close_reason_.has_value()) {
    due.what = Due::What::kFinish;
    due.reason = *close_reason_;
    finished_ = true;
    return due;
  }
  if (!connection_.has_value()) return {};  // nothing is sent before Hello
  due.connection = *connection_;
  if (served && welcome_due_) {
    due.what = Due::What::kWelcome;
    welcome_due_ = false;
  } else if (!said_.empty()) {
    due.what = Due::What::kSaid;
    down_ = std::move(said_.front());
    said_.pop_front();
  } else if (refine_reply_.has_value()) {
    due.what = Due::What::kRefineReply;
    down_.Clear();
    *down_.mutable_refine_reply() = *std::exchange(refine_reply_, std::nullopt);
  } else if (served && announce_due_) {
    due.what = Due::What::kAnnounce;
    announce_due_ = false;
  } else if (served && replacing_due_) {
    due.what = Due::What::kReplacing;
    replacing_due_ = false;
  } else if (keepalive_due_) {
    due.what = Due::What::kKeepalive;
  } else {
    return {};
  }
  keepalive_due_ = false;  // every message shows that we live
  writing_ = true;
  return due;
}

void SyncStream::Pump() {
  const Due due = TakeDue();
  if (due.what == Due::What::kNothing) return;  // perhaps down_ is being written
  if (due.what != Due::What::kSaid && due.what != Due::What::kRefineReply) down_.Clear();
  switch (due.what) {
    case Due::What::kNothing:
      return;
    case Due::What::kSaid:
    case Due::What::kRefineReply:
      break;
    case Due::What::kFinish:
      return Finish(ToGrpc(due.reason));
    case Due::What::kWelcome:
      FillWelcome(*due.state, *down_.mutable_welcome());
      break;
    case Due::What::kAnnounce:
      FillAnnounce(*due.state, *down_.mutable_announce());
      metrics_.OnServed(ServedKind::kDelta, down_.announce().object().size());
      RememberAnnounced(*due.state);
      break;
    case Due::What::kReplacing:
      FillReplacing(*due.state, early_deltas(), *down_.mutable_replacing());
      break;
    case Due::What::kKeepalive:
      down_.mutable_keepalive();
      break;
  }
  down_.set_nonce(hub_.NextNonce(due.connection, due.what == Due::What::kAnnounce).value());
  StartWrite(&down_);
}

void SyncStream::OnWriteDone(bool ok) {
  {
    MutexLock lock(mutex_);
    DWS_CHECK(writing_);  // one write at a time
    writing_ = false;
    if (!ok && !close_reason_.has_value()) close_reason_ = UnavailableError("the receiver hung up");
  }
  Pump();
}

void SyncStream::OnReadDone(bool ok) {
  if (!ok) return Close(OkStatus());  // half-closed or broken: no more acknowledgements
  if (const Status status = HandleUp(up_); !status.ok()) {
    LogWarning("sync_stream_refused", {{"reason", Message(status)}});
    return Close(status);
  }
  StartRead(&up_);
}

Status SyncStream::HandleUp(const v1::SyncUp& message) {
  ConnectionId connection;
  {
    MutexLock lock(mutex_);
    if (connection_.has_value() == message.has_hello()) {
      return InvalidArgumentError(
          "expected Hello as the first message of a Sync stream, and only there");
    }
    if (connection_.has_value()) connection = *connection_;
  }
  switch (message.message_case()) {
    case v1::SyncUp::kHello:
      return HandleHello(message.hello());
    case v1::SyncUp::kAck: {
      const v1::Ack& ack = message.ack();
      DWS_ASSIGN_OR_RETURN(const StreamId stream, FromProto(ack.stream()));
      const WeightVersion version(ack.version());
      if (ack.stage() == v1::Ack::COMMITTED) {
        OnCommitted(version);
        hub_.OnCommitted(connection, stream,
                         {.version = version,
                          .state_token = FromProto(ack.state_token()),
                          .pause_seconds = ack.pause_seconds(),
                          .stage_seconds = ack.stage_seconds(),
                          .fetched_bytes = ack.fetched_bytes()});
        DWS_KILLPOINT("sender.ack.after_commit");
      } else if (ack.stage() == v1::Ack::STAGED) {
        hub_.OnStaged(connection, Nonce(ack.nonce()), stream, version);
      } else {
        return InvalidArgumentError(
            "an Ack of version {} has stage {}, expected STAGED or COMMITTED", version.value(),
            static_cast<int>(ack.stage()));
      }
      return OkStatus();
    }
    case v1::SyncUp::kNack: {
      const v1::Nack& nack = message.nack();
      DWS_ASSIGN_OR_RETURN(const StreamId stream, FromProto(nack.stream()));
      const std::string error(Utf8Prefix(nack.message(), limits::kErrorBytesMax));
      LogWarning("nack", {{"version", nack.version()},
                          {"last_good", nack.last_good_version()},
                          {"code", nack.code()},
                          {"slices", nack.rank_slices_size()},
                          {"reason", error}});
      metrics_.OnNack(nack.code());
      if (hub_.OnNack(connection, Nonce(nack.nonce()), stream, error)) Recheck(stream, nack);
      return OkStatus();
    }
    case v1::SyncUp::kBroadcast:
      if (broadcaster_ != nullptr) broadcaster_->OnReport(connection, message.broadcast());
      return OkStatus();
    case v1::SyncUp::kRefine:
      return HandleRefine(message.refine());
    case v1::SyncUp::MESSAGE_NOT_SET:
      break;  // of a newer minor version: ignored
  }
  return OkStatus();
}

Status SyncStream::HandleRefine(const v1::Refine& refine) {
  DWS_ASSIGN_OR_RETURN(const StreamId stream, FromProto(refine.stream()));
  DWS_ASSIGN_OR_RETURN(CutWishes wishes, FromProto(refine.tensors()));
  const std::string view = this->view();
  const RankStatePtr state = hub_.Current(view);
  // Most receivers ask for the same: the next welcome answers them all.
  if (state == nullptr || state->stream != stream) return OkStatus();
  if (Lacking(state->layout(), wishes).empty()) {
    if (refine.probe()) AnswerRefine(refine.id(), OkStatus());
    return OkStatus();
  }
  if (const RankStatePtr trainer = hub_.Current(); !view.empty() && trainer != nullptr) {
    DWS_ASSIGN_OR_RETURN(const quantise::View parsed, quantise::ParseView(view));
    Result<CutWishes> cuts = quantise::TrainerCuts(parsed, trainer->layout(), wishes);
    if (!cuts.ok()) {
      AnswerRefine(refine.id(), Annotate(cuts.status(), fmt::format("view '{}'", view)));
      return OkStatus();
    }
    wishes = *std::move(cuts);
  }
  refine_({.stream = stream,
           .cuts = wishes,
           .probe = refine.probe(),
           .answer = [self = self_, id = refine.id()](const Status& status) {
             self->AnswerRefine(id, status);
           }});
  return OkStatus();
}

void SyncStream::AnswerRefine(uint64_t id, const Status& status) {
  {
    MutexLock lock(mutex_);
    refine_reply_.emplace();
    refine_reply_->set_id(id);
    refine_reply_->set_code(static_cast<uint32_t>(status.code()));
    refine_reply_->set_message(std::string(Utf8Prefix(Message(status), limits::kErrorBytesMax)));
  }
  Pump();
}

std::string SyncStream::view() const {
  MutexLock lock(mutex_);
  return view_;
}

void SyncStream::RememberAnnounced(const RankState& state) {
  const RetainedVersionPtr newest = state.log->Newest();
  if (newest == nullptr) return;
  MutexLock lock(mutex_);
  if (announced_ == newest->version) return;
  announced_ = newest->version;
  announced_at_ = hub_.clock().Now();
}

void SyncStream::OnCommitted(WeightVersion version) {
  MutexLock lock(mutex_);
  if (announced_ != version) return;  // an older version: no answer to this announcement
  announced_.reset();
  metrics_.OnAcknowledged(hub_.clock().Now() - announced_at_);
}

// A receiver refused slices because of their digests: this sender's memory may be damaged.
void SyncStream::Recheck(const StreamId& stream, const v1::Nack& nack) {
  const RankStatePtr state = hub_.Current(view());
  if (nack.rank_slices().empty() || state == nullptr || state->stream != stream) return;
  std::vector<RankSlice> slices;
  for (const uint32_t slice : nack.rank_slices()) slices.emplace_back(slice);
  recheck_.Ask(state, std::move(slices));
}

Status SyncStream::HandleHello(const v1::Hello& hello) {
  // Checked first, because every error below quotes these ids.
  if (std::max(hello.receiver_id().size(), hello.job_id().size()) > limits::kIdBytesMax) {
    return InvalidArgumentError(
        "a Hello has a receiver id of {} bytes and a job id of {}, at most "
        "{} are supported",
        hello.receiver_id().size(), hello.job_id().size(), limits::kIdBytesMax);
  }
  if (hello.protocol_major() != kProtocolMajor) {
    return UnimplementedError(
        "receiver '{}' speaks protocol {}.{}, this sender {}.{}: upgrade the older one",
        hello.receiver_id(), hello.protocol_major(), hello.protocol_minor(), kProtocolMajor,
        kProtocolMinor);
  }
  DWS_RETURN_IF_ERROR(CheckPeer(peer_, ReceiverIdentity(hello.job_id(), hello.receiver_id()),
                                fmt::format("receiver '{}'", hello.receiver_id())));
  if (!hello.view().empty()) DWS_RETURN_IF_ERROR(quantise::ParseView(hello.view()).status());
  DWS_CHECK(self_ != nullptr);  // OnDone comes after the last reaction
  early_deltas_.store(hello.early_deltas());
  DWS_ASSIGN_OR_RETURN(const ConnectionId id,
                       hub_.Connect(hello.job_id(), hello.receiver_id(), self_, hello.view()));
  LogInfo("receiver_connected",
          {{"id", hello.receiver_id()}, {"have_version", hello.have_version()}});
  {
    MutexLock lock(mutex_);
    DWS_CHECK(!connection_.has_value());  // only the first message is Hello
    connection_ = id;
    view_ = hello.view();
    keepalive_due_ = true;  // without a trainer, too, the receiver is to hear that it is connected
  }
  WelcomeDue();
  if (!hello.view().empty()) {
    follow_(hello.view(), [self = self_](const Status& refused) { self->Close(refused); });
    return OkStatus();  // broadcasts have the trainer's own tensors
  }
  if (broadcaster_ != nullptr) {
    broadcaster_->OnHello(id, hello.receiver_id(), hello.nccl_version(), self_);
  }
  return OkStatus();
}

void SyncStream::OnCancel() { Close(CancelledError("the receiver hung up")); }

void SyncStream::OnDone() {
  std::optional<ConnectionId> connection;
  {
    MutexLock lock(mutex_);
    finished_ = true;
    connection = connection_;
  }
  if (connection.has_value()) hub_.Disconnect(*connection);
  if (connection.has_value() && broadcaster_ != nullptr) broadcaster_->OnDisconnect(*connection);
  self_.reset();  // may be the last reference: nothing after this line
}

}  // namespace dws
