#include "sender_daemon/serve/sync_stream.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log/log.h"
#include "common/base/utf8.h"
#include "common/proto_convert/convert.h"
#include "common/quantise/view.h"
#include "common/service/protocol_version.h"
#include "sender_daemon/serve/sync_messages.h"

namespace dws {

SyncStream* SyncStream::Start(const Parts& parts, Peer peer) {
  return Run(std::shared_ptr<SyncStream>(new SyncStream(parts, std::move(peer))));
}

SyncStream::Fill SyncStream::Next() {
  if (!connection_.has_value()) return nullptr;  // nothing is sent before Hello
  // Under the lock: never older than what set a flag.
  const RankStatePtr state = hub_.Current(view_);
  const auto take = [served = state != nullptr](bool& due) {
    return served && std::exchange(due, false);
  };
  Fill fill;
  bool announces = false;
  if (take(welcome_due_)) {
    fill = [state](v1::SyncDown& down) { FillWelcome(*state, *down.mutable_welcome()); };
  } else if (fill = ServerStream::Next(); fill != nullptr) {
    // It is about a broadcast.
  } else if (refine_reply_.has_value()) {
    fill = [reply = *std::exchange(refine_reply_, std::nullopt)](v1::SyncDown& down) {
      *down.mutable_refine_reply() = reply;
    };
  } else if (take(announce_due_)) {
    announces = true;
    fill = [this, state](v1::SyncDown& down) {
      FillAnnounce(*state, *down.mutable_announce());
      metrics_.OnServed(ServedKind::kDelta, down.announce().object().size());
      RememberAnnounced(*state);
    };
  } else if (take(replacing_due_)) {
    fill = [this, state](v1::SyncDown& down) {
      FillReplacing(*state, early_deltas(), *down.mutable_replacing());
    };
  } else if (keepalive_due_) {
    fill = [](v1::SyncDown& down) { down.mutable_keepalive(); };
  } else {
    return nullptr;
  }
  keepalive_due_ = false;  // every message shows that we live
  return [this, fill, announces, connection = *connection_](v1::SyncDown& down) {
    fill(down);
    down.set_nonce(hub_.NextNonce(connection, announces).value());
  };
}

Status SyncStream::OnMessage(const v1::SyncUp& message) {
  const Status status = HandleUp(message);
  if (!status.ok()) LogWarning("sync_stream_refused", {{"reason", Message(status)}});
  return status;
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
    case v1::SyncUp::kAck:
      return HandleAck(connection, message.ack());
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
      if (peers_ != nullptr) peers_->OnNack(connection);
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

Status SyncStream::HandleAck(ConnectionId connection, const v1::Ack& ack) {
  DWS_ASSIGN_OR_RETURN(const StreamId stream, FromProto(ack.stream()));
  const WeightVersion version(ack.version());
  if (ack.stage() == v1::Ack::COMMITTED) {
    OnCommitted(version);
    const bool plausible = hub_.OnCommitted(connection, stream,
                                            {.version = version,
                                             .state_token = FromProto(ack.state_token()),
                                             .pause_seconds = ack.pause_seconds(),
                                             .stage_seconds = ack.stage_seconds(),
                                             .fetched_bytes = ack.fetched_bytes()});
    if (peers_ != nullptr && plausible) {
      peers_->OnCommitted(connection, {.stream = stream, .version = version});
    }
    DWS_KILLPOINT("sender.ack.after_commit");
  } else if (ack.stage() == v1::Ack::STAGED) {
    hub_.OnStaged(connection, Nonce(ack.nonce()), stream, version);
    if (peers_ != nullptr) peers_->OnStaged(connection);
  } else {
    return InvalidArgumentError("an Ack of version {} has stage {}, expected STAGED or COMMITTED",
                                version.value(), static_cast<int>(ack.stage()));
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
           .answer = [self = shared_from_this(), id = refine.id()](const Status& status) {
             self->AnswerRefine(id, status);
           }});
  return OkStatus();
}

void SyncStream::AnswerRefine(uint64_t id, const Status& status) {
  v1::RefineReply reply;
  reply.set_id(id);
  reply.set_code(static_cast<uint32_t>(status.code()));
  reply.set_message(std::string(Utf8Prefix(Message(status), limits::kErrorBytesMax)));
  Update([&] { refine_reply_ = std::move(reply); });
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
  const std::string& serves_at = hello.peer_address();
  if (!serves_at.empty()) DWS_RETURN_IF_ERROR(PeerDirectory::CheckAddress(serves_at));
  const std::shared_ptr<SyncStream> self = shared_from_this();
  early_deltas_.store(hello.early_deltas());
  DWS_ASSIGN_OR_RETURN(const ConnectionId id,
                       hub_.Connect(hello.job_id(), hello.receiver_id(), self, hello.view()));
  if (peers_ != nullptr && !serves_at.empty()) {
    peers_->Connect(hello.receiver_id(), id, serves_at, hello.view());
  }
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
    follow_(hello.view(), [self](const Status& refused) { self->Close(refused); });
    return OkStatus();  // broadcasts have the trainer's own tensors
  }
  if (broadcaster_ != nullptr) {
    broadcaster_->OnHello(id, hello.receiver_id(), hello.nccl_version(), self);
  }
  return OkStatus();
}

void SyncStream::OnEnd(const Status&) {
  ConnectionId connection;
  {
    MutexLock lock(mutex_);
    if (!connection_.has_value()) return;
    connection = *connection_;
  }
  hub_.Disconnect(connection);
  if (peers_ != nullptr) peers_->Disconnect(connection);
  if (broadcaster_ != nullptr) broadcaster_->OnDisconnect(connection);
}

}  // namespace dws
