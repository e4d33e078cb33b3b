#include "sender_daemon/trainer_session.h"

#include <algorithm>
#include <future>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/model/limits.h"

namespace dws {

TrainerSession::TrainerSession(Options options, Parts parts)
    : options_(std::move(options)), parts_(std::move(parts)) {}

Result<v1::RegisterReply> TrainerSession::Register(const v1::RegisterRequest& request) {
  DWS_ASSIGN_OR_RETURN(Registration registration, ParseRegistration(request));
  if (registration.job_id != options_.job_id) {
    return InvalidArgumentError("the trainer belongs to job '{}', this sender to job '{}'",
                                registration.job_id, options_.job_id);
  }
  if (registration.trainer_rank != options_.trainer_rank) {
    return InvalidArgumentError("trainer rank {} came to the sender of rank {}",
                                registration.trainer_rank.value(), options_.trainer_rank.value());
  }
  DWS_RETURN_IF_ERROR(CheckAdmission(registration));
  const SenderLedgerState ledger = parts_.ledger->state();
  const bool same_stream = ledger.stream() == registration.stream;
  v1::RegisterReply reply;
  reply.set_last_version(
      same_stream && ledger.last_version().has_value() ? ledger.last_version()->value() : 0);
  const uint64_t session = ++last_session_;
  const size_t descriptors = registration.region_bytes.size();
  // The callbacks learn the registration's id through `id`: they run after Expect has returned it.
  auto id = std::make_shared<std::promise<HandleRegistrationId>>();
  std::shared_future<HandleRegistrationId> handle = id->get_future().share();
  DWS_ASSIGN_OR_RETURN(
      const HandleSocket::Registration expected,
      parts_.handles->Expect(
          {.descriptor_count = descriptors,
           .on_descriptors =
               [this, session, handle,
                registration = std::move(registration)](std::vector<UniqueFd> fds) {
                 return OnDescriptors(session, registration, handle.get(), std::move(fds));
               },
           .on_hangup =
               [this, session](const Status&) {
                 if (!parts_.executor->Post([this, session] { OnHangup(session); })) {
                   LogWarning("trainer_hangup_lost", {{"session", session}});
                 }
               }}));
  id->set_value(expected.id);
  reply.set_token(expected.token.data(), expected.token.size());
  reply.set_handle_socket(parts_.handles->path());
  reply.set_session(session);
  reply.set_rank_epoch(ledger.rank_epoch().value());
  return reply;
}

Status TrainerSession::CheckAdmission(const Registration& registration) const {
  DWS_RETURN_IF_ERROR(CheckStream(parts_.ledger->state().stream(), registration.stream));
  if (state_ != nullptr && state_->stream == registration.stream &&
      !(state_->layout() == registration.layout)) {
    return FailedPreconditionError(
        "the layout of stream {} changed: a stream keeps its layout, start a new one with a higher "
        "incarnation",
        ToString(registration.stream));
  }
  return OkStatus();
}

Status TrainerSession::OnDescriptors(uint64_t session, const Registration& registration,
                                     HandleRegistrationId handle,
                                     std::vector<UniqueFd> descriptors) {
  std::vector<HostRegion> regions;
  for (size_t i = 0; i < descriptors.size(); ++i) {
    auto region =
        HostRegion::Map(std::move(descriptors[i]), registration.region_bytes[i], Access::kReadOnly);
    if (!region.ok()) return Annotate(region.status(), fmt::format("region {}", i));
    regions.push_back(*std::move(region));
  }
  // The trainer hears of the outcome as the answer on the handle socket.
  auto outcome = std::make_shared<std::promise<Status>>();
  std::future<Status> done = outcome->get_future();
  auto shared_regions = std::make_shared<std::vector<HostRegion>>(std::move(regions));
  if (!parts_.executor->Post([this, session, registration, handle, shared_regions, outcome] {
        outcome->set_value(Activate(session, registration, handle, std::move(*shared_regions)));
      })) {
    return ResourceExhaustedError("the sender is busy; register again");
  }
  if (done.wait_for(limits::kRpcDeadline) != std::future_status::ready) {
    return DeadlineExceededError("the registration was not activated in time; register again");
  }
  try {
    return done.get();
  } catch (const std::future_error&) {  // the executor stopped and dropped the task
    return UnavailableError("the sender is shutting down");
  }
}

Status TrainerSession::Activate(uint64_t session, Registration registration,
                                HandleRegistrationId handle, std::vector<HostRegion> regions) {
  if (live_.has_value() && live_->session > session) {
    return FailedPreconditionError("another trainer registered for rank {} meanwhile",
                                   registration.trainer_rank.value());
  }
  DWS_RETURN_IF_ERROR(
      CheckAdmission(registration));  // again: others may have come and gone since Register
  Live live{.session = session, .handle = handle};
  if (registration.ring.has_value()) {
    live.ring = std::move(regions.front());
  } else {
    DWS_ASSIGN_OR_RETURN(
        live.resident,
        ResidentSource::Create(registration.layout, std::move(regions), registration.places));
  }
  if (live_.has_value()) {
    LogWarning("trainer_fenced", {{"session", live_->session}, {"by", session}});
    const HandleRegistrationId old = live_->handle;
    live_.reset();  // an open version is undone
    present_.store(false);
    parts_.handles->Drop(old);
  }
  DWS_ASSIGN_OR_RETURN(state_, OpenState(registration));
  live.registration = std::move(registration);
  LogInfo("trainer_registered", {{"client", live.registration.client},
                                 {"stream", ToString(state_->stream)},
                                 {"tensors", state_->layout().shards().size()},
                                 {"bytes", state_->layout().size_bytes()}});
  live_ = std::move(live);
  present_.store(true);
  parts_.on_state(state_);
  return OkStatus();
}

// The state for a registration: the one we have when it goes on in the same stream with the same
// layout.
Result<RankStatePtr> TrainerSession::OpenState(const Registration& registration) {
  if (state_ != nullptr && state_->stream == registration.stream &&
      state_->layout() == registration.layout && state_->world_size == registration.world_size) {
    return state_;
  }
  DWS_RETURN_IF_ERROR(parts_.pipeline->Drain(limits::kRpcDeadline));
  const SenderLedgerState ledger = parts_.ledger->state();
  const bool same_stream = ledger.stream() == registration.stream;
  // The same stream without its snapshot (this process is new): a higher epoch, full tensors next.
  const RankEpoch epoch(
      std::max(options_.epoch_floor.value(), same_stream ? ledger.rank_epoch().value() + 1 : 1));
  DWS_ASSIGN_OR_RETURN(auto snapshot, Snapshot::Create(registration.layout));
  DWS_RETURN_IF_ERROR(
      parts_.ledger->Append(StreamOpened{.stream = registration.stream, .rank_epoch = epoch}));
  return std::make_shared<const RankState>(
      RankState{.stream = registration.stream,
                .trainer_rank = registration.trainer_rank,
                .world_size = registration.world_size,
                .rank_epoch = epoch,
                .snapshot = std::move(snapshot),
                .log = std::make_shared<DeltaLog>(registration.layout, options_.log_limits)});
}

void TrainerSession::OnHangup(uint64_t session) {
  if (!live_.has_value() || live_->session != session) return;
  LogInfo("trainer_gone", {{"session", session}, {"client", live_->registration.client}});
  live_.reset();  // an open version is undone, memory is unmapped
  present_.store(false);
  parts_.on_gone();
}

Result<TrainerSession::Live*> TrainerSession::Find(uint64_t session) {
  if (live_.has_value() && live_->session == session) return &*live_;
  return FailedPreconditionError("session {} is not registered (any more): {}", session,
                                 live_.has_value() ? "another trainer took its place"
                                                   : "register first, or again after a restart");
}

std::optional<WeightVersion> TrainerSession::LastVersion() const {
  std::optional<WeightVersion> last =
      parts_.ledger->state().last_version();  // of the current stream
  if (state_ != nullptr && state_->snapshot->version().has_value()) {
    last = std::max(last.value_or(WeightVersion(0)), *state_->snapshot->version());
  }
  return last;
}

Status TrainerSession::CheckVersion(WeightVersion version) const {
  const uint64_t last = LastVersion().value_or(WeightVersion(0)).value();
  if (version.value() > last) return OkStatus();
  return FailedPreconditionError(
      "version {} does not increase: the newest of stream {} is {}; publish {} "
      "or higher, or start a new stream",
      version.value(), ToString(state_->stream), last, last + 1);
}

Status TrainerSession::Begin(const v1::BeginRequest& request) {
  DWS_ASSIGN_OR_RETURN(Live * live, Find(request.session()));
  if (!live->registration.ring.has_value()) {
    return InvalidArgumentError(
        "this registration hands over a resident region: publish it, nothing has to be begun");
  }
  if (live->open_version != nullptr) {
    return FailedPreconditionError("version {} is open: publish or abort it before beginning {}",
                                   live->open_version->version().value(), request.version());
  }
  DWS_RETURN_IF_ERROR(CheckVersion(WeightVersion(request.version())));
  live->open_version =
      std::make_unique<Capture>(*state_->snapshot, *parts_.pool, WeightVersion(request.version()));
  return OkStatus();
}

Status TrainerSession::Put(const v1::PutRequest& request, const StillWanted& still_wanted) {
  DWS_ASSIGN_OR_RETURN(Live * live, Find(request.session()));
  if (live->open_version == nullptr || live->open_version->version().value() != request.version()) {
    return FailedPreconditionError("version {} is not open: begin it first", request.version());
  }
  const Registration::Ring& ring = *live->registration.ring;
  if (request.bucket() >= ring.bucket_count) {
    return InvalidArgumentError("bucket {} does not exist, the ring has {}", request.bucket(),
                                ring.bucket_count);
  }
  if (static_cast<size_t>(request.pieces_size()) > limits::kPutPiecesMax) {
    return InvalidArgumentError("{} pieces in one Put, at most {} are supported",
                                request.pieces_size(), limits::kPutPiecesMax);
  }
  std::vector<BucketPiece> pieces;
  for (const v1::PutPiece& piece : request.pieces()) {
    pieces.push_back({.slice = RankSlice(piece.rank_slice()),
                      .first_block = piece.first_block(),
                      .block_count = piece.block_count(),
                      .offset_bytes = piece.offset_bytes()});
  }
  const ByteSpan bucket =
      live->ring.bytes().subspan(uint64_t{request.bucket()} * ring.bucket_bytes, ring.bucket_bytes);
  DWS_ASSIGN_OR_RETURN(const BucketSource source,
                       BucketSource::Create(state_->layout(), bucket, std::move(pieces)));
  DWS_RETURN_IF_ERROR(live->open_version->Blocks(source.Blocks(), source));
  if (still_wanted()) return OkStatus();
  live->open_version.reset();
  return CancelledError(
      "a put into version {} was given up by the trainer: nothing of the version is kept",
      request.version());
}

Status TrainerSession::Abort(const v1::AbortRequest& request) {
  DWS_ASSIGN_OR_RETURN(Live * live, Find(request.session()));
  if (live->open_version == nullptr || live->open_version->version().value() != request.version()) {
    return FailedPreconditionError("version {} is not open: there is nothing to abort",
                                   request.version());
  }
  live->open_version.reset();
  return OkStatus();
}

Result<v1::PublishReply> TrainerSession::Publish(const v1::PublishRequest& request,
                                                 const StillWanted& still_wanted) {
  const TimePoint accepted_at = parts_.clock->Now();
  const WeightVersion version(request.version());
  DWS_ASSIGN_OR_RETURN(Live * live, Find(request.session()));
  DWS_RETURN_IF_ERROR(CheckVersion(version));
  const bool ring = live->registration.ring.has_value();
  if (ring && (live->open_version == nullptr || live->open_version->version() != version)) {
    return FailedPreconditionError("version {} is not open: begin it and put its tensors first",
                                   version.value());
  }
  DWS_RETURN_IF_ERROR(parts_.pipeline->Reserve(limits::kRpcDeadline));
  if (!ring && still_wanted()) {
    live->open_version = std::make_unique<Capture>(*state_->snapshot, *parts_.pool, version);
    // Every block once: it cannot be refused.
    DWS_CHECK(live->open_version->Blocks(AllBlocks(state_->layout()), *live->resident).ok());
  }
  if (!still_wanted()) {
    live->open_version.reset();
    return CancelledError(
        "publishing version {} was given up by the trainer: nothing of it is kept",
        version.value());
  }
  DWS_ASSIGN_OR_RETURN(CapturedVersion captured, live->open_version->Finish());
  live->open_version.reset();
  v1::PublishReply reply;
  reply.set_changed_elements(captured.nnz);
  reply.set_total_elements(state_->layout().element_count());
  reply.set_capture_seconds(ToSeconds(parts_.clock->Now() - accepted_at));
  parts_.pipeline->Submit({.state = state_,
                           .captured = std::move(captured),
                           .capture_seconds = reply.capture_seconds(),
                           .accepted_at = accepted_at});
  return reply;
}

Status TrainerSession::CheckWait(const v1::WaitRequest& request) {
  DWS_ASSIGN_OR_RETURN(const Live* live, Find(request.session()));
  (void)live;
  const std::optional<WeightVersion> captured = state_->snapshot->version();
  if (captured.has_value() && captured->value() >= request.version()) return OkStatus();
  return AbortedError(
      "version {} was not published to this sender (newest {}): it was lost with a restart, "
      "or never published",
      request.version(), captured.has_value() ? captured->value() : 0);
}

}  // namespace dws
