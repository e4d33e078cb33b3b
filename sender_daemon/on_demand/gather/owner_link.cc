// An owner that is gone keeps its layout: it may come back with the same one, and what was planned
// with it stays right. What it has published is forgotten, because another process may answer next.
#include "sender_daemon/on_demand/gather/owner_link.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/protocol_version.h"
#include "common/sources/sender/welcome.h"
#include "sender_daemon/on_demand/gather/limits.h"

namespace dws {
namespace {

// The other sender answers, and does not want us.
bool Refuses(const Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsUnimplemented(status) ||
         absl::IsPermissionDenied(status);
}

}  // namespace

OwnerLink::OwnerLink(OwnerLinkOptions options, ChangeSignal& changed, TrainListener& listener,
                     const Clock& clock)
    : options_(std::move(options)),
      changed_(changed),
      listener_(listener),
      channel_(options_.address, options_.job_id, options_.tls, Role::kTrain),
      snapshot_({.users = options_.tls.users, .host_id = options_.host_id, .asks_again = false}),
      connected_(UnavailableError("it is not connected yet")),
      stream_(
          limits::kTrainQueueMax, clock,
          {.prepare = [this] { return channel_.Refresh(); },
           .open =
               [this](auto* context, auto* reactor) {
                 v1::TrainService::NewStub(channel_.channel())->async()->Train(context, reactor);
               },
           .hello = [this] { return Hello(); },
           .on_message = [this](const auto&, const v1::TrainDown& message, const Peer& peer,
                                bool first) { return OnMessage(message, peer, first); },
           .on_done = [this](const Status& reason, bool /*lost*/) { OnDone(reason); }}) {}

OwnerLink::~OwnerLink() { Stop(); }

std::string OwnerLink::name() const {
  return fmt::format("trainer rank {} at {}", options_.owner.value(), options_.address);
}

void OwnerLink::Tick() {
  if (stream_.Tick() == LinkState::Step::kDrop) calls_.CancelPresent();
}

void OwnerLink::Send(v1::TrainMessage message) {
  v1::TrainUp up;
  *up.mutable_train() = std::move(message);
  stream_.Send(std::move(up));
}

Status OwnerLink::CheckPeer(const grpc::ClientContext& context) const {
  return channel_.CheckSender(PeerOf(context.auth_context().get()), options_.owner.value());
}

void OwnerLink::Stop() {
  calls_.CancelForGood();
  stream_.Stop();
}

v1::TrainUp OwnerLink::Hello() const {
  v1::TrainUp message;
  v1::TrainHello& hello = *message.mutable_hello();
  hello.set_job_id(options_.job_id);
  hello.set_protocol_major(kProtocolMajor);
  hello.set_protocol_minor(kProtocolMinor);
  hello.set_trainer_rank(options_.self.value());
  hello.set_wanted_rank(options_.owner.value());
  return message;
}

Status OwnerLink::OnMessage(const v1::TrainDown& message, const Peer& peer, bool first) {
  if (first) {
    LogInfo("owner_connected", {{"owner", name()}});
    {
      MutexLock lock(mutex_);
      connected_ = OkStatus();
    }
    changed_.Notify();
    listener_.OnOwner(options_.owner);
  }
  switch (message.message_case()) {
    case v1::TrainDown::kWelcome:
      return OnWelcome(message.welcome(), peer);
    case v1::TrainDown::kPublished:
      return OnPublished(message.published());
    case v1::TrainDown::kHost:
      return OnHost(message.host());
    case v1::TrainDown::kTrain:
      DWS_RETURN_IF_ERROR(channel_.CheckSender(peer, options_.owner.value()));
      listener_.OnDown(options_.owner, message.train());
      return OkStatus();
    case v1::TrainDown::kKeepalive:
    case v1::TrainDown::MESSAGE_NOT_SET:  // of a newer minor version: ignored
      return OkStatus();
  }
  return OkStatus();
}

Status OwnerLink::OnWelcome(const v1::Welcome& message, const Peer& peer) {
  DWS_RETURN_IF_ERROR(channel_.CheckSender(peer, options_.owner.value()));
  DWS_ASSIGN_OR_RETURN(SenderWelcome welcome,
                       ParseWelcome(message, options_.job_id, {}, "this sender"));
  if (welcome.trainer_rank != options_.owner) {
    return FailedPreconditionError("the sender at {} is of trainer rank {}, expected {}",
                                   options_.address, welcome.trainer_rank.value(),
                                   options_.owner.value());
  }
  {
    MutexLock lock(mutex_);
    DWS_RETURN_IF_ERROR(CheckFollows(welcome));
  }
  snapshot_.Forget();  // perhaps there is another one
  {
    MutexLock lock(mutex_);
    welcome_ = std::move(welcome);
    versions_.clear();
  }
  stream_.Accepted();
  changed_.Notify();
  return OkStatus();
}

// As receivers do: an older process of the sender, or a layout that another epoch must have, would
// prove stale bytes by its own digests.
Status OwnerLink::CheckFollows(const SenderWelcome& welcome) const {
  if (!welcome_.has_value() || welcome_->stream != welcome.stream) return OkStatus();
  if (welcome.rank_epoch < welcome_->rank_epoch) {
    return FailedPreconditionError(
        "the sender at {} has rank epoch {}, an earlier one of this stream had {}",
        options_.address, welcome.rank_epoch.value(), welcome_->rank_epoch.value());
  }
  if (welcome.rank_epoch == welcome_->rank_epoch &&
      welcome.layout->signature() != welcome_->layout->signature()) {
    return FailedPreconditionError("the sender at {} has another layout in the same rank epoch {}",
                                   options_.address, welcome.rank_epoch.value());
  }
  return OkStatus();
}

Status OwnerLink::OnPublished(const v1::Published& message) {
  DWS_ASSIGN_OR_RETURN(const StreamId stream, FromProto(message.stream()));
  if (message.versions_size() > static_cast<int>(limits::kRetainedVersionsMax)) {
    return InvalidArgumentError("{} published versions, at most {} are supported",
                                message.versions_size(), limits::kRetainedVersionsMax);
  }
  std::vector<WeightVersion> versions;
  for (const uint64_t version : message.versions()) {
    if (!versions.empty() && versions.back().value() >= version) {
      return InvalidArgumentError("published versions that do not ascend");
    }
    versions.emplace_back(version);
  }
  {
    MutexLock lock(mutex_);
    const bool current = welcome_.has_value() && welcome_->stream == stream &&
                         welcome_->rank_epoch == RankEpoch(message.rank_epoch());
    if (!current) return OkStatus();  // its Welcome, or a newer message, is on its way
    versions_ = std::move(versions);
  }
  changed_.Notify();
  return OkStatus();
}

Status OwnerLink::OnHost(const v1::TrainHost& message) {
  if (message.host_id().size() > limits::kIdBytesMax) {
    return InvalidArgumentError("a host id of {} bytes, at most {} are supported",
                                message.host_id().size(), limits::kIdBytesMax);
  }
  MutexLock lock(mutex_);
  host_ = OwnerHost{.id = message.host_id(),
                    .cache_bytes = message.cache_bytes(),
                    .accumulate_bytes = message.accumulate_bytes()};
  return OkStatus();
}

std::optional<OwnerHost> OwnerLink::host() const {
  MutexLock lock(mutex_);
  return host_;
}

void OwnerLink::OnDone(const Status& reason) {
  {
    MutexLock lock(mutex_);
    if (connected_.ok()) {
      LogWarning("owner_lost", {{"owner", name()}, {"reason", Message(reason)}});
    }
    connected_ = reason;
    versions_.clear();
    host_.reset();
  }
  snapshot_.Forget();  // another process may answer next
  changed_.Notify();
}

Status OwnerLink::connected() const {
  MutexLock lock(mutex_);
  if (connected_.ok() || Refuses(connected_)) return connected_;
  return UnavailableError("{}", Message(connected_));
}

Result<SenderWelcome> OwnerLink::Registered(const StreamId& stream) const {
  MutexLock lock(mutex_);
  if (Refuses(connected_)) return FailedPreconditionError("{}", Message(connected_));
  if (!welcome_.has_value()) {
    if (!connected_.ok()) return UnavailableError("{}", Message(connected_));
    return UnavailableError("its trainer has not registered");
  }
  if (welcome_->stream == stream) return *welcome_;
  if (welcome_->stream.incarnation > stream.incarnation) {
    return FailedPreconditionError("it is in incarnation {} of the trainer, this rank in {}",
                                   welcome_->stream.incarnation, stream.incarnation);
  }
  return UnavailableError("it is in incarnation {} of the trainer still, this rank in {}",
                          welcome_->stream.incarnation, stream.incarnation);
}

Result<SenderWelcome> OwnerLink::Has(const VersionAt& at) const {
  DWS_ASSIGN_OR_RETURN(SenderWelcome welcome, Registered(at.stream));
  MutexLock lock(mutex_);
  if (!connected_.ok()) return UnavailableError("it is gone: {}", Message(connected_));
  if (std::ranges::binary_search(versions_, at.version)) return welcome;
  if (!versions_.empty() && versions_.front() > at.version) {
    return AbortedError("version {} is no longer retained, the oldest one is {}",
                        at.version.value(), versions_.front().value());
  }
  if (!versions_.empty() && versions_.back() > at.version) {
    return AbortedError("version {} was skipped, the newest one is {}", at.version.value(),
                        versions_.back().value());
  }
  return UnavailableError("it has not published version {}", at.version.value());
}

Fetcher OwnerLink::fetcher(const SyncTarget& target, TrainerRank rank) {
  const Digest& layout = target.ranks[rank.value()].layout->signature();
  DWS_CHECK(rank == options_.owner);
  return {channel_.channel(), calls_, layout,
          [this](const grpc::ClientContext& context) { return CheckPeer(context); }};
}

}  // namespace dws
