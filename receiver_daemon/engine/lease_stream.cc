// Commands of the worker's thread are queued; only gRPC's reactions use the lease of a stream.
#include "receiver_daemon/engine/lease_stream.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "common/base/utf8.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"

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
  return Run(std::shared_ptr<LeaseStream>(new LeaseStream(registry)));
}

Status LeaseStream::OnMessage(const v1::LeaseUp& message) {
  if ((lease_ != nullptr) == message.has_open()) {
    return InvalidArgumentError(
        "expected LeaseOpen as the first message of a lease stream, and only there");
  }
  switch (message.message_case()) {
    case v1::LeaseUp::kOpen:
      return HandleOpen(message.open());
    case v1::LeaseUp::kPaused:
      lease_->OnPaused({.pause_id = message.paused().pause_id(),
                        .generation = Generation(message.paused().generation()),
                        .devices_drained = message.paused().devices_drained(),
                        .stopped_for = StoppedFor(message.paused())});
      return OkStatus();
    case v1::LeaseUp::kPostCommitDone:
      lease_->OnPostCommitDone(
          message.post_commit_done().pause_id(),
          std::string(Utf8Prefix(message.post_commit_done().error(), limits::kErrorBytesMax)));
      return OkStatus();
    case v1::LeaseUp::kCommitRequest:
      return HandleCommitRequest(message.commit_request());
    case v1::LeaseUp::kStopped: {
      std::string reason(Utf8Prefix(message.stopped().reason(), limits::kErrorBytesMax));
      registry_.OnStopped(lease_->generation(), reason);
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
  const std::shared_ptr<LeaseStream> self = shared_from_this();
  DWS_RETURN_IF_ERROR(lease->Open(
      {.send =
           [self](const LeaseCommand& command) { self->Send(std::visit(ToMessage(), command)); },
       .end = [self](const Status& reason) { self->EndAfterQueue(reason); }},
      open.devices_drained()));
  lease_ = lease;
  registry_.OnLeaseChanged();
  return OkStatus();
}

Status LeaseStream::HandleCommitRequest(const v1::CommitRequest& message) {
  EngineLease::CommitRequest request{.version = WeightVersion(message.version()),
                                     .stream = std::nullopt};
  if (message.has_stream()) {
    DWS_ASSIGN_OR_RETURN(request.stream, FromProto(message.stream()));
  }
  lease_->OnCommitRequest(request);
  registry_.OnLeaseChanged();
  return OkStatus();
}

void LeaseStream::OnEnd(const Status& reason) {
  if (lease_ == nullptr) return;
  registry_.End(lease_->generation(),
                reason.ok() ? UnavailableError("the engine ended its lease stream") : reason);
  lease_.reset();  // which shares this stream
}

}  // namespace dws
