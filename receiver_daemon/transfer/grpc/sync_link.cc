#include "receiver_daemon/transfer/grpc/sync_link.h"

#include <algorithm>
#include <utility>

#include "common/base/log/log.h"
#include "common/base/utf8.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/grpc/grpc_credentials.h"
#include "common/sources/sender/welcome.h"
#include "common/sync_state/presence_limits.h"
#include "receiver_daemon/transfer/grpc/sender_messages.h"

namespace dws {
namespace {

Result<SenderAnnouncement> ParseAnnounce(const v1::Announce& message) {
  DWS_ASSIGN_OR_RETURN(const StreamId stream, FromProto(message.stream()));
  SenderAnnouncement announcement{.stream = stream,
                                  .rank_epoch = RankEpoch(message.rank_epoch()),
                                  .versions = {},
                                  .newest_token = {}};
  for (const uint64_t version : message.versions()) announcement.versions.emplace_back(version);
  if (message.versions_size() > 0) announcement.newest_token = FromProto(message.state_token());
  return announcement;
}

// Null: the announcement contains no object. An object above the limit is fetched like any other.
std::shared_ptr<const InlineObject> TakeInline(const SenderAnnouncement& announcement,
                                               const v1::Announce& message) {
  if (message.object().empty() || message.object().size() > limits::kInlineObjectBytesMax ||
      announcement.versions.empty()) {
    return nullptr;
  }
  return std::make_shared<const InlineObject>(
      InlineObject{.stream = announcement.stream,
                   .base = WeightVersion(message.object_base()),
                   .version = announcement.versions.back(),
                   .bytes = message.object()});
}

// No sender that keeps the protocol sends this. Its stream ends, and the next one starts after a
// growing delay.
bool BreaksProtocol(const Status& status) { return absl::IsInvalidArgument(status); }

}  // namespace

SyncLink::SyncLink(SenderIndex index, const std::string& address, ReceiverName name,
                   std::string view, const PeerTls& tls, Subscription& subscription,
                   const Clock& clock)
    : index_(index),
      address_(address),
      name_(std::move(name)),
      view_(std::move(view)),
      subscription_(subscription),
      channel_(address, name_.job_id, tls),
      snapshot_({.users = tls.users}),
      clock_(clock),
      stream_(limits::kSyncQueueMax, clock,
              {.prepare = [this] { return channel_.Refresh(); },
               .open = [this](auto* context,
                              auto* reactor) { channel_.stub()->async()->Sync(context, reactor); },
               .hello = [this] { return Hello(); },
               .on_message = [this](const auto&, const v1::SyncDown& message, const Peer& peer,
                                    bool first) { return OnMessage(message, peer, first); },
               .on_done = [this](const Status& reason, bool lost) { OnDone(reason, lost); }}) {}

Fetcher SyncLink::fetcher(const SyncTarget& target, TrainerRank rank) {
  const Digest& layout = target.ranks[rank.value()].layout->signature();
  const auto check = [this, rank](const grpc::ClientContext& context) {
    return channel_.CheckSender(PeerOf(context.auth_context().get()), rank.value());
  };
  return {channel_.channel(), calls_, layout, check,
          peer_address_.empty() ? std::string() : name_.receiver_id};
}

void SyncLink::JoinBroadcasts(nccl::BroadcastChannel::Parts parts, uint64_t object_bytes_max) {
  broadcasts_ = std::make_unique<BroadcastMember>(
      std::move(parts), BroadcastMember::Options{.sender = address_, .bytes_max = object_bytes_max},
      [this](v1::SyncUp message) { Send(std::move(message)); });
}

v1::SyncUp SyncLink::Hello() const {
  v1::SyncUp message;
  v1::Hello& hello = *message.mutable_hello();
  Introduce(name_, hello);
  hello.set_view(view_);
  hello.set_peer_address(peer_address_);
  hello.set_early_deltas(early_deltas_);
  if (broadcasts_ != nullptr) hello.set_nccl_version(broadcasts_->nccl_version());
  if (const std::optional<VersionAt> live = subscription_.live(); live.has_value()) {
    *hello.mutable_stream() = ToProto(live->stream);
    hello.set_have_version(live->version.value());
  }
  return message;
}

void SyncLink::CatchUp() {
  const std::optional<RankVersion> live = subscription_.LiveFor(index_);
  if (!live.has_value()) return;
  v1::SyncUp message;
  v1::Ack& ack = *message.mutable_ack();
  ack.set_version(live->at.version.value());
  ack.set_stage(v1::Ack::COMMITTED);
  *ack.mutable_stream() = ToProto(live->at.stream);
  *ack.mutable_state_token() = ToProto(live->state_token);
  Send(std::move(message));
}

void SyncLink::AskForCuts() {
  const TimePoint now = clock_.Now();
  const uint64_t revision = subscription_.cuts_revision();
  const bool same = std::exchange(cuts_seen_, revision) == revision;
  if (same && (!asked_.has_value() || now < ask_at_)) return;
  const std::optional<CutOrder> order = subscription_.CutsToAsk(index_);
  if (!order.has_value()) {
    asked_.reset();
    return;
  }
  const bool again = asked_.has_value() && asked_->probe == order->probe &&
                     asked_->id == order->id && asked_->cuts == order->cuts;
  if (again && now < ask_at_) return;
  if (!again) {
    LogInfo("cuts_asked_for",
            {{"address", address_}, {"tensors", order->cuts.size()}, {"probe", order->probe}});
  }
  ask_at_ = now + limits::kRefusedRetryInterval;
  v1::SyncUp message;
  *message.mutable_refine() = RefineMessage(*order);
  asked_ = order;
  Send(std::move(message));
}

void SyncLink::Tick() {
  if (const Status broken = RetryRefused(); !broken.ok()) stream_.Drop(broken);
  switch (stream_.Tick()) {
    case LinkState::Step::kWait:
      return AskForCuts();
    case LinkState::Step::kConnect:
      return CatchUp();  // what was committed, or welcomed, before there was a call to say it on
    case LinkState::Step::kDrop:
      return calls_.CancelPresent();
  }
}

Status SyncLink::OnMessage(const v1::SyncDown& message, const Peer& peer, bool first) {
  if (first) {
    LogInfo("sender_connected", {{"address", address_}});
    subscription_.OnConnect(index_);
  }
  switch (message.message_case()) {
    case v1::SyncDown::kWelcome:
      return OnWelcome(message.welcome(), peer);
    case v1::SyncDown::kAnnounce:
      return OnAnnounce(message.announce(), message.nonce());
    case v1::SyncDown::kReplacing:
      return OnReplacing(message.replacing());
    case v1::SyncDown::kBroadcastOffer:
    case v1::SyncDown::kBroadcastBegin:
    case v1::SyncDown::kBroadcastEnd:
      return broadcasts_ == nullptr ? OkStatus() : OnBroadcast(message);
    case v1::SyncDown::kRefineReply:
      OnRefineReply(message.refine_reply());
      return OkStatus();
    case v1::SyncDown::kKeepalive:
    case v1::SyncDown::MESSAGE_NOT_SET:  // of a newer minor version: ignored
      return OkStatus();
  }
  return OkStatus();
}

Status SyncLink::OnWelcome(const v1::Welcome& message, const Peer& peer) {
  DWS_RETURN_IF_ERROR(channel_.CheckSender(peer, message.trainer_rank()));
  DWS_ASSIGN_OR_RETURN(SenderWelcome welcome, ParseWelcome(message, name_.job_id, view_));
  KeepInline(nullptr);  // perhaps of another rank
  snapshot_.Forget();   // perhaps there is another snapshot
  {
    MutexLock lock(order_mutex_);
    refused_.reset();
    const Status status = subscription_.OnWelcome(index_, welcome);
    if (status.ok()) {
      refused_since_.reset();
      refused_why_.clear();
    } else {
      if (std::exchange(refused_why_, std::string(Message(status))) != Message(status)) {
        LogWarning("sender_refused", {{"address", address_}, {"reason", Message(status)}});
      }
      if (BreaksProtocol(status)) return status;
      // A refusal keeps the connection for a while: the sender's next trainer may be the right one.
      refused_ = Refused{.welcome = std::move(welcome),
                         .announcement = std::nullopt,
                         .retry_at = clock_.Now() + limits::kRefusedRetryInterval};
      if (!refused_since_.has_value()) refused_since_ = clock_.Now();
    }
  }
  CatchUp();
  return OkStatus();
}

Status SyncLink::OnAnnounce(const v1::Announce& message, uint64_t nonce) {
  DWS_ASSIGN_OR_RETURN(SenderAnnouncement announcement, ParseAnnounce(message));
  KeepInline(TakeInline(announcement, message));
  MutexLock lock(order_mutex_);
  if (refused_.has_value()) {
    if (!announcement.versions.empty()) TellRefusal(announcement, nonce);
    refused_->announcement.emplace(nonce, std::move(announcement));
    return OkStatus();
  }
  const Status status = subscription_.OnAnnounce(index_, nonce, std::move(announcement));
  if (BreaksProtocol(status)) return status;
  if (status.ok()) {
    // Not on a Welcome: one that is refused, or fenced by a twin of this receiver, is no success.
    stream_.Accepted();
  } else {
    LogDebug("announcement_ignored", {{"address", address_}, {"reason", Message(status)}});
  }
  return OkStatus();
}

// Tells the trainer why nothing of its stream is committed here.
void SyncLink::TellRefusal(const SenderAnnouncement& announcement, uint64_t nonce) {
  Send(NackMessage({.stream = announcement.stream, .version = announcement.versions.back()}, nonce,
                   {.last_good = std::nullopt,
                    .reason = FailedPreconditionError("it refuses this sender: {}", refused_why_),
                    .slices = {}}));
}

Status SyncLink::OnReplacing(const v1::Replacing& message) {
  DWS_ASSIGN_OR_RETURN(const StreamId stream, FromProto(message.stream()));
  const auto number = [](uint64_t version) {
    return version == 0 ? std::nullopt : std::optional(WeightVersion(version));
  };
  subscription_.OnReplacing(index_, stream, RankEpoch(message.rank_epoch()),
                            number(message.version()), number(message.base_version()));
  return OkStatus();
}

void SyncLink::OnRefineReply(const v1::RefineReply& message) {
  const Status reply = MakeStatus(static_cast<absl::StatusCode>(message.code()),
                                  Utf8Prefix(message.message(), limits::kErrorBytesMax));
  if (!reply.ok() && std::exchange(refusal_, reply) != reply) {
    LogWarning("cuts_refused", {{"address", address_}, {"reason", Message(reply)}});
  }
  subscription_.OnRefineReply(index_, message.id(), reply);
}

// Another sender that held the rank may have gone, or the receiver may follow another stream now.
Status SyncLink::RetryRefused() {
  MutexLock lock(order_mutex_);
  if (!refused_.has_value() || clock_.Now() < refused_->retry_at) return OkStatus();
  if (const Status welcomed = subscription_.OnWelcome(index_, refused_->welcome); !welcomed.ok()) {
    refused_->retry_at = clock_.Now() + limits::kRefusedRetryInterval;
    const bool over = clock_.Now() - *refused_since_ >= limits::kRefusedStreamMax;
    return over || BreaksProtocol(welcomed) ? welcomed : OkStatus();
  }
  LogInfo("sender_accepted_after_refusal", {{"address", address_}});
  refused_since_.reset();
  refused_why_.clear();
  const auto said = std::exchange(refused_, std::nullopt)->announcement;
  if (!said.has_value()) return OkStatus();
  const Status status = subscription_.OnAnnounce(index_, said->first, said->second);
  if (status.ok()) stream_.Accepted();
  return BreaksProtocol(status) ? status : OkStatus();
}

Status SyncLink::OnBroadcast(const v1::SyncDown& message) {
  if (message.has_broadcast_offer()) return broadcasts_->OnOffer(message.broadcast_offer());
  if (message.has_broadcast_begin()) return broadcasts_->OnBegin(message.broadcast_begin());
  return broadcasts_->OnEnd(message.broadcast_end());
}

void SyncLink::KeepInline(std::shared_ptr<const InlineObject> object) {
  MutexLock lock(mutex_);
  inline_ = std::move(object);
}

std::shared_ptr<const InlineObject> SyncLink::Inline(const StreamId& stream, WeightVersion base,
                                                     WeightVersion version) {
  MutexLock lock(mutex_);
  const bool is_it = inline_ != nullptr && inline_->stream == stream && inline_->base == base &&
                     inline_->version == version;
  return is_it ? inline_ : nullptr;
}

void SyncLink::OnDone(const Status& reason, bool lost) {
  bool refused = false;
  {
    MutexLock lock(order_mutex_);
    refused_.reset();
    refused = std::exchange(refused_since_, std::nullopt).has_value();
    subscription_.OnDisconnect(index_, reason);
  }
  if (refused) {  // logged as such, once
    LogDebug("sender_refused_again", {{"address", address_}, {"reason", Message(reason)}});
  } else if (lost) {
    LogWarning("sender_disconnected", {{"address", address_}, {"reason", Message(reason)}});
  } else if (!view_.empty() && reason != unheard_) {  // it may have no such view
    LogWarning("sender_refuses", {{"address", address_}, {"reason", Message(reason)}});
  }
  unheard_ = reason;
  KeepInline(nullptr);
  snapshot_.Forget();
  if (broadcasts_ != nullptr) broadcasts_->OnDisconnect();
}

void SyncLink::CancelFetches() {
  calls_.CancelForGood();
  if (broadcasts_ != nullptr) broadcasts_->Close();
}

void SyncLink::Stop() {
  CancelFetches();
  if (broadcasts_ != nullptr) broadcasts_->Stop();
  stream_.Stop();
}

}  // namespace dws
