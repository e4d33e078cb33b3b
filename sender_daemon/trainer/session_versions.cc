// The versions of a live registration; registrations are in trainer_session.cc.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log/log.h"
#include "common/base/threads/mark.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/sockets/unix_socket.h"
#include "sender_daemon/trainer/trainer_session.h"

namespace dws {
namespace {

Status AttemptGivenUp(uint64_t version) {
  return CancelledError("the time for version {} is over: nothing of it is kept", version);
}

// OK: it is new, or it was recorded with the same weights.
Status CheckRecorded(const SenderLedgerState& ledger, const CapturedVersion& captured) {
  const bool recorded = ledger.last_version() == captured.version;
  if (!recorded) return OkStatus();
  const auto& published = ledger.published();
  if (!published.empty() && published.back().state_token == StateToken(captured.after)) {
    return OkStatus();
  }
  return FailedPreconditionError(
      "version {} is recorded with other weights than these: register again, and publish the "
      "recorded ones, or version {}",
      captured.version.value(), captured.version.value() + 1);
}

}  // namespace

Result<TrainerSession::Live*> TrainerSession::Find(uint64_t session) {
  DWS_CHECK(!live_.has_value() || state_ != nullptr);  // callers use the state of a live one
  if (live_.has_value() && live_->session == session) return &*live_;
  return FailedPreconditionError("session {} is no longer registered: {}", session,
                                 live_.has_value() ? "another trainer took its place"
                                                   : "register first, or again after a restart");
}

Result<RankStatePtr> TrainerSession::StateOf(uint64_t session) {
  DWS_RETURN_IF_ERROR(Find(session).status());
  return state_;
}

bool TrainerSession::GivenUp(const Live& live, uint64_t attempt) {
  return (attempt != 0 && attempt <= live.attempts_given_up) || PeerHasShut(live.connection);
}

std::optional<WeightVersion> TrainerSession::LastVersion() const {
  auto last = parts_.ledger->state().last_version();  // of the current stream
  if (state_ != nullptr && state_->snapshot->newest().has_value()) {
    last = std::max(last.value_or(WeightVersion(0)), *state_->snapshot->newest());
  }
  return last;
}

Status TrainerSession::AdmitVersion(WeightVersion version) const {
  DWS_RETURN_IF_ERROR(parts_.drain->Admit(fmt::format("version {}", version.value())));
  const uint64_t last = LastVersion().value_or(WeightVersion(0)).value();
  if (version.value() > last) return OkStatus();
  // The recorded version, whose weights a restart has lost, may be published once more.
  if (last > 0 && version.value() == last && !state_->snapshot->newest().has_value())
    return OkStatus();
  return FailedPreconditionError(
      "version {} does not increase: the newest of stream {} is {}; publish {} "
      "or higher, or start a new stream",
      version.value(), ToString(state_->stream), last, last + 1);
}

void TrainerSession::OpenVersion(Live& live, WeightVersion version, bool full) {
  const std::optional<DeltaProfile> decided = Decided(options_.profile);
  const DeltaProfile profile = decided.has_value() ? *decided : state_->log->Asked();
  const bool fast_links = !options_.feeds_directory && (decided == DeltaProfile::kDirect ||
                                                        (!decided && state_->log->AllDirect()));
  const FullCause cause =
      full ? FullCause::kAsked : state_->snapshot->history().full_watch.Cause(fast_links);
  live.open_version = std::make_unique<Capture>(*state_->snapshot, *parts_.pool, version, profile,
                                                cause, WhenFetchable());
  if (cause != FullCause::kNone) parts_.on_replacing();
  if (parts_.views != nullptr) parts_.views->OnOpened();
}

void TrainerSession::GiveUpVersion(Live& live) {
  live.open_version.reset();
  parts_.on_replacing();
  if (parts_.views != nullptr) parts_.views->OnGivenUp();
}

Result<v1::BeginReply> TrainerSession::Begin(const v1::BeginRequest& request) {
  DWS_ASSIGN_OR_RETURN(Live * live, Find(request.session()));
  if (!live->registration.ring.has_value()) {
    return InvalidArgumentError(
        "this registration hands over a resident region: publish it, without beginning a version");
  }
  if (live->open_version != nullptr) {
    return FailedPreconditionError("version {} is open: publish or abort it before beginning {}",
                                   live->open_version->version().value(), request.version());
  }
  if (GivenUp(*live, request.attempt())) return AttemptGivenUp(request.version());
  DWS_RETURN_IF_ERROR(AdmitVersion(WeightVersion(request.version())));
  v1::BeginReply reply;
  const Digest numbered_by = request.has_layout_signature() ? FromProto(request.layout_signature())
                                                            : live->registration.layout.signature();
  if (numbered_by != state_->layout().signature()) {
    *reply.mutable_layout() = ToProto(state_->layout());
    *reply.mutable_layout_signature() = ToProto(state_->layout().signature());
    return reply;
  }
  live->open_attempt = request.attempt();
  live->capture_time = {};
  OpenVersion(*live, WeightVersion(request.version()), request.full());
  return reply;
}

Status TrainerSession::Put(const v1::PutRequest& request, const StillWanted& still_wanted) {
  DWS_ASSIGN_OR_RETURN(Live * live, Find(request.session()));
  if (live->open_version == nullptr || live->open_version->version().value() != request.version()) {
    return FailedPreconditionError("version {} is not open: begin it first", request.version());
  }
  // A Put of an earlier attempt: its bucket has been reused.
  if (request.attempt() != live->open_attempt) return AttemptGivenUp(request.version());
  DWS_CHECK(live->registration.ring.has_value());  // else nothing stays open between calls
  DWS_ASSIGN_OR_RETURN(BucketSource source, ParsePut(request, state_->layout(),
                                                     *live->registration.ring, live->ring.bytes()));
  const TimePoint began = parts_.clock->Now();
  DWS_RETURN_IF_ERROR(live->open_version->Blocks(source.Blocks(), source));
  live->capture_time += parts_.clock->Now() - began;
  if (still_wanted() && !GivenUp(*live, request.attempt())) return OkStatus();
  GiveUpVersion(*live);
  RefineLater();
  return CancelledError(
      "the time for a put into version {} is over: nothing of the version is kept",
      request.version());
}

Status TrainerSession::Abort(const v1::AbortRequest& request) {
  DWS_ASSIGN_OR_RETURN(Live * live, Find(request.session()));
  live->attempts_given_up = std::max(live->attempts_given_up, request.attempt());
  if (live->open_version == nullptr || live->open_version->version().value() != request.version()) {
    return FailedPreconditionError("version {} is not open: there is nothing to abort",
                                   request.version());
  }
  GiveUpVersion(*live);
  RefineLater();
  return OkStatus();
}

v1::PublishReply TrainerSession::ReplyOf(uint64_t changed, bool full, TimePoint accepted_at) const {
  v1::PublishReply reply;
  reply.set_changed_elements(changed);
  reply.set_total_elements(state_->layout().element_count());
  reply.set_full(full);
  reply.set_capture_seconds(ToSeconds(parts_.clock->Now() - accepted_at));
  return reply;
}

Result<v1::PublishReply> TrainerSession::Publish(const v1::PublishRequest& request,
                                                 const StillWanted& still_wanted,
                                                 const Answer& answer) {
  const TimePoint accepted_at = parts_.clock->Now();
  // Set before the drain switch is read, so that Drain either waits for this version or refuses it.
  const Mark publishing(publishing_);
  const WeightVersion version(request.version());
  const uint64_t attempt = request.attempt();
  DWS_ASSIGN_OR_RETURN(Live * live, Find(request.session()));
  DWS_RETURN_IF_ERROR(AdmitVersion(version));
  const bool ring = live->registration.ring.has_value();
  if (ring && (live->open_version == nullptr || live->open_version->version() != version)) {
    return FailedPreconditionError("version {} is not open: begin it and put its tensors first",
                                   version.value());
  }
  if (ring && attempt != live->open_attempt) return AttemptGivenUp(version.value());
  DWS_ASSIGN_OR_RETURN(const TrainerLists lists, ParseLists(request, live->registration));
  DWS_RETURN_IF_ERROR(parts_.pipeline->Reserve(limits::kRpcDeadline));
  const TimePoint began = parts_.clock->Now();
  const auto wanted = [&] { return still_wanted() && !GivenUp(*live, attempt); };
  std::optional<v1::PublishReply> answered;
  const auto on_read = [&](uint64_t changed) {
    if (answer == nullptr || !wanted()) return;
    answered = ReplyOf(changed, /*full=*/false, accepted_at);
    answer(*answered);
    DWS_KILLPOINT("sender.gpu.after_read");
  };
  if (!ring && wanted()) {
    live->capture_time = {};
    OpenVersion(*live, version, request.full());
    // Each block once, so none is refused; but a GPU may fail.
    if (Status captured = CaptureResident(*live->open_version, *live->resident, *state_->snapshot,
                                          *parts_.pool, lists, on_read);
        !captured.ok()) {
      GiveUpVersion(*live);
      return Annotate(captured, fmt::format("version {}", version.value()));
    }
  }
  // Checked after the last read of the weights: if wanted then, the version is whole and published.
  if (!answered.has_value() && !wanted()) {
    GiveUpVersion(*live);
    RefineLater();
    return AttemptGivenUp(version.value());
  }
  DWS_ASSIGN_OR_RETURN(CapturedVersion captured, live->open_version->Finish());
  live->open_version.reset();
  DWS_CHECK(captured.version == version);
  if (Status recorded = CheckRecorded(parts_.ledger->state(), captured); !recorded.ok()) {
    OnHangup(live->session);
    state_.reset();  // nobody may get these weights
    return recorded;
  }
  std::vector<ViewJob> views;
  if (parts_.views != nullptr) views = parts_.views->OnCaptured(captured);
  const v1::PublishReply reply =
      answered.value_or(ReplyOf(captured.nnz, !captured.base.has_value(), accepted_at));
  DWS_CHECK(reply.changed_elements() == captured.nnz);
  DWS_KILLPOINT("sender.publish.after_capture");
  parts_.pipeline->Submit(
      {.state = state_,
       .captured = std::move(captured),
       .capture_seconds = answered.has_value()
                              ? answered->capture_seconds()
                              : ToSeconds(live->capture_time + (parts_.clock->Now() - began)),
       .accepted_at = accepted_at,
       .views = std::move(views)});
  RefineLater();
  return reply;
}

Status TrainerSession::CheckWait(const v1::WaitRequest& request) {
  DWS_ASSIGN_OR_RETURN(const Live* live, Find(request.session()));
  (void)live;
  const std::optional<WeightVersion> captured = state_->snapshot->newest();
  if (captured.has_value() && captured->value() >= request.version()) return OkStatus();
  return AbortedError(
      "version {} was not published to this sender (newest {}): it was lost with a restart, "
      "or never published",
      request.version(), captured.has_value() ? captured->value() : 0);
}

}  // namespace dws
