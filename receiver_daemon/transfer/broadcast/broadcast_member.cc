#include "receiver_daemon/transfer/broadcast/broadcast_member.h"

#include <algorithm>
#include <utility>

#include "common/base/failpoint.h"
#include "common/base/log/log.h"
#include "common/base/utf8.h"
#include "common/delta/bits/checksum.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"

namespace dws {
namespace {

// Caps the time that a sender asks for.
Duration Timeout(uint32_t timeout_ms) {
  return std::min<Duration>(std::chrono::milliseconds(timeout_ms),
                            2 * limits::kBroadcastTimeoutMax);
}

}  // namespace

BroadcastMember::BroadcastMember(nccl::BroadcastChannel::Parts parts, Options options,
                                 std::function<void(v1::SyncUp)> report)
    : parts_(std::move(parts)),
      options_(std::move(options)),
      clock_(*parts_.clock),
      report_(std::move(report)),
      cache_(clock_),
      thread_([this] { Run(); }) {}

BroadcastMember::~BroadcastMember() { Stop(); }

void BroadcastMember::Close() {
  cache_.Close();
  MutexLock lock(mutex_);
  stopping_ = true;
  wanted_ = 0;
  tasks_.Close();
}

void BroadcastMember::Stop() {
  Close();
  if (thread_.joinable()) thread_.join();
}

Status BroadcastMember::Push(std::variant<Join, Receive, Leave> what) {
  if (tasks_.Put({.connection = connection_, .what = std::move(what)}) || stopping_) {
    return OkStatus();
  }
  return ResourceExhaustedError("{} messages about broadcasts wait, the maximum",
                                limits::kBroadcastQueueMax);
}

Status BroadcastMember::OnOffer(const v1::BroadcastOffer& offer) {
  Join join{.epoch = offer.epoch(),
            .terms = {.id = {},
                      .place = {.rank = offer.rank(), .size = offer.size()},
                      .piece_bytes = offer.piece_bytes()},
            .deadline = clock_.Now() + Timeout(offer.timeout_ms())};
  if (offer.epoch() == 0 || offer.unique_id().size() != join.terms.id.bytes.size() ||
      offer.rank() == 0 || offer.rank() >= offer.size() ||
      offer.size() > limits::kBroadcastMembersMax || offer.piece_bytes() == 0 ||
      offer.piece_bytes() > limits::kBroadcastPieceBytes) {
    return InvalidArgumentError(
        "an offer of broadcast epoch {} has an id of {} bytes, rank {} of {} and pieces of {} "
        "bytes, expected {}, 1 to {} and at most {}",
        offer.epoch(), offer.unique_id().size(), offer.rank(), offer.size(), offer.piece_bytes(),
        join.terms.id.bytes.size(), limits::kBroadcastMembersMax, limits::kBroadcastPieceBytes);
  }
  std::copy(offer.unique_id().begin(), offer.unique_id().end(), join.terms.id.bytes.begin());
  MutexLock lock(mutex_);
  if (!stopping_) wanted_ = offer.epoch();
  sequence_ = 0;
  return Push(std::move(join));
}

Status BroadcastMember::OnBegin(const v1::BroadcastBegin& begin) {
  DWS_ASSIGN_OR_RETURN(const StreamId stream, FromProto(begin.stream()));
  if (begin.object_bytes() == 0 || begin.object_bytes() > limits::kBroadcastObjectBytesMax) {
    return InvalidArgumentError("a broadcast of {} bytes is begun, expected 1 to {}",
                                begin.object_bytes(), limits::kBroadcastObjectBytesMax);
  }
  const Receive receive{.epoch = begin.epoch(),
                        .key = {.stream = stream,
                                .base = WeightVersion(begin.base_version()),
                                .version = WeightVersion(begin.version())},
                        .object_bytes = begin.object_bytes(),
                        .checksum = begin.checksum(),
                        .deadline = clock_.Now() + Timeout(begin.timeout_ms())};
  MutexLock lock(mutex_);
  // This receiver has left the epoch, and the sender is about to hear that.
  if (wanted_ == 0 || wanted_ != begin.epoch()) return OkStatus();
  if (begin.sequence() != ++sequence_) {
    return InvalidArgumentError("broadcast {} of epoch {} is begun, expected {}", begin.sequence(),
                                begin.epoch(), sequence_);
  }
  // First: the thread may receive it at once.
  if (receive.object_bytes <= options_.bytes_max) cache_.Expect(receive.key, receive.deadline);
  const Status pushed = Push(receive);
  if (!pushed.ok()) cache_.Fail(receive.key);
  return pushed;
}

Status BroadcastMember::OnEnd(const v1::BroadcastEnd& end) {
  MutexLock lock(mutex_);
  if (wanted_ == end.epoch()) wanted_ = 0;
  return Push(Leave{.epoch = end.epoch()});
}

void BroadcastMember::OnDisconnect() {
  MutexLock lock(mutex_);
  ++connection_;
  wanted_ = 0;
  tasks_.TakeAll();                            // of the stream that has ended
  static_cast<void>(Push(Leave{.epoch = 0}));  // there is room now
}

BroadcastMember::View BroadcastMember::view() const {
  MutexLock lock(mutex_);
  return view_;
}

bool BroadcastMember::Wanted(uint64_t epoch) const {
  MutexLock lock(mutex_);
  return wanted_ == epoch;
}

nccl::BroadcastChannel::Until BroadcastMember::Until(TimePoint deadline, uint64_t epoch) {
  return {.deadline = deadline, .given_up = [this, epoch] { return !Wanted(epoch); }};
}

void BroadcastMember::Run() {
  while (const std::optional<Task> task = tasks_.Take()) {
    std::visit([&](const auto& what) { Do(task->connection, what); }, task->what);
  }
  channel_.reset();
}

void BroadcastMember::Do(uint64_t connection, const Join& join) {
  channel_.reset();
  if (!Wanted(join.epoch)) return;  // its end is the next task
  auto channel = nccl::BroadcastChannel::Join(parts_, join.terms, Until(join.deadline, join.epoch));
  if (!channel.ok()) return Abandon(connection, join.epoch, channel.status());
  channel_ = *std::move(channel);
  {
    MutexLock lock(mutex_);
    view_.epoch = join.epoch;
  }
  LogInfo("broadcast_epoch_joined", {{"sender", options_.sender},
                                     {"epoch", join.epoch},
                                     {"rank", join.terms.place.rank},
                                     {"ranks", join.terms.place.size}});
  Report(connection, join.epoch, v1::BroadcastReport::JOINED, OkStatus());
}

Result<std::vector<std::byte>> BroadcastMember::TakePart(const Receive& receive) {
  DWS_FAILPOINT("receiver.broadcast.after_begin");
  // The other members need this one, even if it cannot keep the object.
  std::vector<std::byte> object(receive.object_bytes <= options_.bytes_max ? receive.object_bytes
                                                                           : 0);
  DWS_RETURN_IF_ERROR(
      channel_->Receive(object, receive.object_bytes, Until(receive.deadline, receive.epoch)));
  return object;
}

void BroadcastMember::Do(uint64_t connection, const Receive& receive) {
  if (channel_ == nullptr || !Wanted(receive.epoch)) return cache_.Fail(receive.key);
  Result<std::vector<std::byte>> object = TakePart(receive);
  if (!object.ok()) {
    cache_.Fail(receive.key);
    {
      MutexLock lock(mutex_);
      ++view_.failed;
    }
    return Abandon(connection, receive.epoch, object.status());
  }
  if (object->empty()) return;
  const bool intact = Checksum(*object) == receive.checksum;
  {
    MutexLock lock(mutex_);
    intact ? ++view_.received : ++view_.failed;
    view_.received_bytes += intact ? object->size() : 0;
  }
  if (intact) return cache_.Put(receive.key, *std::move(object));
  LogError("broadcast_damaged", {{"sender", options_.sender},
                                 {"version", receive.key.version.value()},
                                 {"bytes", object->size()},
                                 {"reason", "its checksum differs: it is fetched"}});
  cache_.Fail(receive.key);
}

void BroadcastMember::Do(uint64_t connection, const Leave& leave) {
  channel_.reset();
  cache_.FailAll(leave.epoch == 0);
  {
    MutexLock lock(mutex_);
    view_.epoch = 0;
  }
  if (leave.epoch != 0) {
    Report(connection, leave.epoch, v1::BroadcastReport::LEFT, OkStatus());
  }
}

void BroadcastMember::Abandon(uint64_t connection, uint64_t epoch, const Status& status) {
  channel_.reset();
  {
    MutexLock lock(mutex_);
    view_.epoch = 0;
    // The epoch is over: its end is reported elsewhere.
    if (wanted_ != epoch) return;
    wanted_ = 0;
  }
  cache_.FailAll(false);
  LogWarning("broadcast_epoch_left",
             {{"sender", options_.sender}, {"epoch", epoch}, {"reason", Message(status)}});
  Report(connection, epoch, v1::BroadcastReport::LEFT, status);
}

void BroadcastMember::Report(uint64_t connection, uint64_t epoch, v1::BroadcastReport::State state,
                             const Status& status) {
  {
    MutexLock lock(mutex_);
    if (connection_ != connection) return;  // the sender may be another process now
  }
  v1::SyncUp message;
  v1::BroadcastReport& report = *message.mutable_broadcast();
  report.set_epoch(epoch);
  report.set_state(state);
  report.set_code(static_cast<uint32_t>(status.code()));
  report.set_message(std::string(Utf8Prefix(Message(status), limits::kErrorBytesMax)));
  report_(std::move(message));
}

}  // namespace dws
