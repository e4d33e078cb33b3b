// gRPC's reactions must not block: commands wait in a bounded queue, with one write in flight.
#include "receiver_daemon/engine/lease_stream.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "common/base/check.h"
#include "common/base/utf8.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/grpc/grpc_status.h"

namespace dws {
namespace {

struct ToMessage {
  v1::LeaseDown operator()(const PauseCommand& command) const {
    v1::LeaseDown down;
    down.mutable_pause()->set_pause_id(command.pause_id);
    return down;
  }
  v1::LeaseDown operator()(const PostCommitCommand& command) const {
    v1::LeaseDown down;
    v1::PostCommit& hook = *down.mutable_post_commit();
    hook.set_pause_id(command.pause_id);
    hook.set_version(command.version.value());
    hook.mutable_contents()->Assign(command.contents.begin(), command.contents.end());
    return down;
  }
  v1::LeaseDown operator()(const ResumeCommand& command) const {
    v1::LeaseDown down;
    v1::Resume& resume = *down.mutable_resume();
    resume.set_pause_id(command.pause_id);
    resume.set_version(command.version.version.value());
    *resume.mutable_stream() = ToProto(command.version.stream);
    *resume.mutable_state_token() = ToProto(command.version.state_token);
    return down;
  }
};

Duration StoppedFor(const v1::Paused& message) {
  constexpr uint64_t kMicrosecondsMax = 3'600'000'000;  // longer than any pause is waited for
  return std::chrono::microseconds(std::min(message.stopped_microseconds(), kMicrosecondsMax));
}

}  // namespace

LeaseStream* LeaseStream::Start(EngineRegistry& registry) {
  std::shared_ptr<LeaseStream> stream(new LeaseStream(registry));
  stream->self_ = stream;
  stream->StartRead(&stream->up_);
  return stream.get();
}

std::shared_ptr<EngineLease> LeaseStream::lease() {
  MutexLock lock(mutex_);
  return lease_;
}

void LeaseStream::OnReadDone(bool ok) {
  if (!ok) return Close(OkStatus());
  if (const Status status = HandleUp(up_); !status.ok()) return Close(status);
  StartRead(&up_);
}

Status LeaseStream::HandleUp(const v1::LeaseUp& message) {
  const std::shared_ptr<EngineLease> held = lease();
  if ((held != nullptr) == message.has_open()) {
    return InvalidArgumentError(
        "expected LeaseOpen as the first message of a lease stream, and only there");
  }
  switch (message.message_case()) {
    case v1::LeaseUp::kOpen:
      return HandleOpen(message.open());
    case v1::LeaseUp::kPaused:
      held->OnPaused({.pause_id = message.paused().pause_id(),
                      .generation = Generation(message.paused().generation()),
                      .devices_drained = message.paused().devices_drained(),
                      .stopped_for = StoppedFor(message.paused())});
      return OkStatus();
    case v1::LeaseUp::kPostCommitDone:
      held->OnPostCommitDone(
          message.post_commit_done().pause_id(),
          std::string(Utf8Prefix(message.post_commit_done().error(), limits::kErrorBytesMax)));
      return OkStatus();
    case v1::LeaseUp::kCommitRequest:
      return HandleCommitRequest(*held, message.commit_request());
    case v1::LeaseUp::kStopped: {
      std::string reason(Utf8Prefix(message.stopped().reason(), limits::kErrorBytesMax));
      registry_.OnStopped(held->generation(), reason);
      return FailedPreconditionError("the engine has stopped: {}", reason);
    }
    case v1::LeaseUp::MESSAGE_NOT_SET:
      break;  // from a newer minor version: ignored
  }
  return OkStatus();
}

Status LeaseStream::HandleOpen(const v1::LeaseOpen& open) {
  DWS_ASSIGN_OR_RETURN(const std::shared_ptr<EngineLease> lease,
                       registry_.FindLease(open.engine_rank(), Generation(open.generation())));
  std::shared_ptr<LeaseStream> self = self_;
  DWS_CHECK(self != nullptr);  // OnDone comes after the last reaction
  DWS_RETURN_IF_ERROR(
      lease->Open({.send = [self](const LeaseCommand& command) { self->Send(command); },
                   .end = [self](const Status& reason) { self->End(reason); }},
                  open.devices_drained()));
  {
    MutexLock lock(mutex_);
    DWS_CHECK(lease_ == nullptr);  // only the first message opens
    lease_ = lease;
  }
  registry_.OnLeaseChanged();
  return OkStatus();
}

Status LeaseStream::HandleCommitRequest(EngineLease& held, const v1::CommitRequest& message) {
  EngineLease::CommitRequest request{.version = WeightVersion(message.version()),
                                     .stream = std::nullopt};
  if (message.has_stream()) {
    DWS_ASSIGN_OR_RETURN(request.stream, FromProto(message.stream()));
  }
  held.OnCommitRequest(request);
  registry_.OnLeaseChanged();
  return OkStatus();
}

void LeaseStream::Send(const LeaseCommand& command) {
  bool full = false;
  {
    MutexLock lock(mutex_);
    full = queue_.size() >= limits::kLeaseQueueMax;
    if (!full && !close_reason_.has_value()) queue_.push_back(std::visit(ToMessage(), command));
    DWS_CHECK(queue_.size() <= limits::kLeaseQueueMax);
  }
  if (full) return Close(ResourceExhaustedError("the engine does not read its lease stream"));
  Pump();
}

void LeaseStream::Close(const Status& reason) {
  {
    MutexLock lock(mutex_);
    queue_.clear();
  }
  End(reason);
}

void LeaseStream::End(const Status& reason) {
  {
    MutexLock lock(mutex_);
    if (!close_reason_.has_value()) close_reason_ = reason;
  }
  Pump();
}

void LeaseStream::Pump() {
  std::optional<Status> reason;
  {
    MutexLock lock(mutex_);
    if (writing_ || finished_) return;
    if (!queue_.empty()) {
      writing_ = true;
      down_ = std::move(queue_.front());
      queue_.pop_front();
    } else if (close_reason_.has_value()) {
      finished_ = true;
      reason = close_reason_;
    } else {
      return;
    }
  }
  if (reason.has_value()) return Finish(ToGrpc(*reason));
  StartWrite(&down_);
}

void LeaseStream::OnWriteDone(bool ok) {
  {
    MutexLock lock(mutex_);
    DWS_CHECK(writing_);  // one write at a time
    writing_ = false;
    if (!ok) queue_.clear();
    if (!ok && !close_reason_.has_value()) close_reason_ = UnavailableError("the engine hung up");
  }
  Pump();
}

void LeaseStream::OnCancel() { Close(CancelledError("the engine hung up")); }

void LeaseStream::OnDone() {
  std::shared_ptr<EngineLease> held;
  Status reason;
  {
    MutexLock lock(mutex_);
    finished_ = true;
    held = std::move(lease_);
    reason = close_reason_.value_or(OkStatus());
  }
  if (held != nullptr) {
    registry_.End(held->generation(),
                  reason.ok() ? UnavailableError("the engine ended its lease stream") : reason);
  }
  self_.reset();  // may destroy this object, so it is the last line
}

}  // namespace dws
