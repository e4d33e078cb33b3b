#include "sender_daemon/serve/broadcaster.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log/log.h"
#include "common/base/utf8.h"
#include "common/delta/bits/checksum.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"

namespace dws {
namespace {

uint32_t Milliseconds(Duration duration) {
  return static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

Duration TransferTime(uint64_t bytes) {
  return std::chrono::milliseconds(bytes * 1000 / limits::kBroadcastBytesPerSecondMin);
}

// Why a member left.
BroadcastState::Departure DepartureOf(uint32_t code) {
  switch (static_cast<absl::StatusCode>(code)) {
    case absl::StatusCode::kOk:
      return BroadcastState::Departure::kAsked;
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnavailable:
      return BroadcastState::Departure::kStalled;
    default:
      return BroadcastState::Departure::kUnable;
  }
}

}  // namespace

Broadcaster::Broadcaster(nccl::BroadcastChannel::Parts parts, Duration timeout)
    : parts_(std::move(parts)),
      clock_(*parts_.clock),
      timeout_(timeout),
      state_(timeout),
      thread_([this] { Run(); }) {}

Broadcaster::~Broadcaster() { Stop(); }

void Broadcaster::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Broadcaster::OnHello(ConnectionId connection, const std::string& receiver_id,
                          uint32_t nccl_version, std::shared_ptr<BroadcastConnection> down) {
  if (nccl_version == 0) return;
  if (nccl_version != parts_.api->version()) {
    LogWarning("broadcast_refused",
               {{"id", receiver_id},
                {"reason", "its NCCL is of another version: it fetches over gRPC"},
                {"expected", nccl::NcclVersionText(parts_.api->version())},
                {"found", nccl::NcclVersionText(nccl_version)}});
    return;
  }
  MutexLock lock(mutex_);
  receivers_[connection] = {.id = receiver_id, .down = std::move(down)};
  state_.OnCapable(connection);
  DWS_CHECK(receivers_.size() == state_.capable());
  changed_.NotifyAll();
}

void Broadcaster::OnDisconnect(ConnectionId connection) {
  MutexLock lock(mutex_);
  receivers_.erase(connection);
  state_.OnDisconnect(connection);
  DWS_CHECK(receivers_.size() == state_.capable());
  changed_.NotifyAll();
}

void Broadcaster::OnReport(ConnectionId connection, const v1::BroadcastReport& report) {
  const BroadcastEpoch epoch(report.epoch());
  MutexLock lock(mutex_);
  if (report.state() == v1::BroadcastReport::JOINED) state_.OnJoined(connection, epoch);
  if (report.state() == v1::BroadcastReport::LEFT) {
    const auto found = receivers_.find(connection);
    if (report.code() != 0 && found != receivers_.end()) {
      LogWarning("broadcast_member_left",
                 {{"id", found->second.id},
                  {"epoch", epoch.value()},
                  {"reason", Utf8Prefix(report.message(), limits::kErrorBytesMax)}});
    }
    state_.OnLeft(connection, epoch, DepartureOf(report.code()), clock_.Now());
  }
  changed_.NotifyAll();
}

void Broadcaster::Offer(const StreamId& stream, const RetainedVersionPtr& version) {
  if (version == nullptr || !version->base.has_value()) return;
  // Sends the encoding with raw blocks, if there is one: it needs the least decoding, and receivers
  // with fast links ask for it.
  const std::vector<std::byte>& bytes = version->object_of(DeltaProfile::kDirect);
  if (version->object.size() <= limits::kInlineObjectBytesMax) return;  // in the announcement
  if (bytes.size() > limits::kBroadcastObjectBytesMax) return;
  {
    MutexLock lock(mutex_);
    if (!CanSend()) return;
  }
  const uint64_t checksum = Checksum(bytes);
  const Duration timeout = timeout_ + TransferTime(bytes.size());
  std::vector<ConnectionId> members;
  v1::SyncDown message;
  {
    MutexLock lock(mutex_);
    if (!CanSend()) return;
    members = state_.members();
    DWS_CHECK(!members.empty());  // the loss of a member breaks the epoch
    job_ = Job{.epoch = state_.epoch(),
               .version = version->version,
               .object = ObjectPtr(version, &bytes),
               .deadline = clock_.Now() + timeout};
    v1::BroadcastBegin& begin = *message.mutable_broadcast_begin();
    begin.set_epoch(state_.epoch().value());
    begin.set_sequence(++sequence_);
    *begin.mutable_stream() = ToProto(stream);
    begin.set_base_version(version->base->value());
    begin.set_version(version->version.value());
    begin.set_object_bytes(bytes.size());
    begin.set_checksum(checksum);
    begin.set_timeout_ms(Milliseconds(timeout));
    changed_.NotifyAll();
  }
  Say(members, message);
}

bool Broadcaster::CanSend() {
  if (state_.ready() && !sending_ && !job_.has_value()) return true;
  ++counts_.skipped;
  return false;
}

BroadcastView Broadcaster::view() const {
  MutexLock lock(mutex_);
  BroadcastView view = counts_;
  view.receivers = state_.capable();
  if (state_.ready()) {
    view.epoch = state_.epoch().value();
    view.members = state_.members().size();
  }
  return view;
}

std::shared_ptr<BroadcastConnection> Broadcaster::Down(ConnectionId connection) const {
  MutexLock lock(mutex_);
  const auto found = receivers_.find(connection);
  return found == receivers_.end() ? nullptr : found->second.down;
}

void Broadcaster::Say(const std::vector<ConnectionId>& to, const v1::SyncDown& message) {
  for (const ConnectionId connection : to) {
    if (const auto down = Down(connection); down != nullptr) down->Say(message);
  }
}

nccl::BroadcastChannel::Until Broadcaster::Until(TimePoint deadline) {
  return {.deadline = deadline, .given_up = [this] {
            MutexLock lock(mutex_);
            return stopping_ || state_.broken();
          }};
}

void Broadcaster::Run() {
  while (true) {
    BroadcastState::Step step;
    std::optional<Job> job;
    {
      MutexLock lock(mutex_);
      sending_ = false;
      while (!stopping_) {
        if (job_.has_value()) {
          job = std::exchange(job_, std::nullopt);
          sending_ = true;
          break;
        }
        step = state_.Next(clock_.Now());
        if (!std::holds_alternative<std::monostate>(step)) break;
        changed_.WaitFor(mutex_, limits::kTick);
      }
      if (stopping_) break;
    }
    if (job.has_value()) Send(*job);
    std::visit([this](const auto& due) { CarryOut(due); }, step);
  }
  channel_.reset();
}

void Broadcaster::CarryOut(const BroadcastState::Form& form) {
  DWS_CHECK(channel_ == nullptr);  // the epoch before has ended
  DWS_CHECK(!form.members.empty() && form.members.size() < limits::kBroadcastMembersMax);
  const TimePoint deadline = clock_.Now() + timeout_;
  const auto size = static_cast<uint32_t>(form.members.size() + 1);
  const Result<nccl::NcclUniqueId> id = nccl::NcclCommunicator::NewId(*parts_.api);
  Status status = id.status();
  if (id.ok()) {
    v1::SyncDown message;
    v1::BroadcastOffer& offer = *message.mutable_broadcast_offer();
    offer.set_epoch(form.epoch.value());
    offer.set_unique_id(id->bytes.data(), id->bytes.size());
    offer.set_size(size);
    offer.set_timeout_ms(Milliseconds(timeout_));
    offer.set_piece_bytes(limits::kBroadcastPieceBytes);
    for (uint32_t rank = 1; rank < size; ++rank) {
      offer.set_rank(rank);
      Say({form.members[rank - 1]}, message);
    }
    auto channel = nccl::BroadcastChannel::Join(
        parts_, {.id = *id, .place = {.rank = 0, .size = size}, .piece_bytes = offer.piece_bytes()},
        Until(deadline));
    status = channel.status();
    if (channel.ok()) channel_ = *std::move(channel);
  }
  if (status.ok()) {
    LogInfo("broadcast_epoch_joined", {{"epoch", form.epoch.value()}, {"ranks", size}});
  } else {
    LogWarning("broadcast_epoch_not_joined",
               {{"epoch", form.epoch.value()}, {"ranks", size}, {"reason", Message(status)}});
  }
  MutexLock lock(mutex_);
  sequence_ = 0;
  status.ok() ? state_.OnFormed(form.epoch) : state_.OnBroken(form.epoch);
}

void Broadcaster::CarryOut(const BroadcastState::End& end) {
  // Members are told before our own abort, so that they do not wait for it.
  v1::SyncDown message;
  message.mutable_broadcast_end()->set_epoch(end.epoch.value());
  Say(end.members, message);
  channel_.reset();
  LogInfo("broadcast_epoch_ended", {{"epoch", end.epoch.value()}, {"failed", end.failed}});
  MutexLock lock(mutex_);
  counts_.epochs_failed += end.failed ? 1 : 0;
}

void Broadcaster::Send(const Job& job) {
  DWS_KILLPOINT("sender.broadcast.after_begin");
  const Status status = channel_ == nullptr ? CancelledError("the epoch was over")
                                            : channel_->Send(*job.object, Until(job.deadline));
  if (!status.ok()) {
    LogWarning("broadcast_failed", {{"version", job.version.value()},
                                    {"epoch", job.epoch.value()},
                                    {"bytes", job.object->size()},
                                    {"reason", Message(status)}});
  }
  MutexLock lock(mutex_);
  if (!status.ok()) {
    ++counts_.failed;
    return state_.OnBroken(job.epoch);
  }
  ++counts_.sent;
  counts_.sent_bytes += job.object->size();
  state_.OnBroadcast(clock_.Now());
}

}  // namespace dws
