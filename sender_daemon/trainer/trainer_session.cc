#include "sender_daemon/trainer/trainer_session.h"

#include <algorithm>
#include <future>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log/log.h"
#include "common/base/threads/mark.h"
#include "common/base/threads/run_on.h"
#include "common/model/clock_bound.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/sockets/unix_socket.h"
#include "sender_daemon/capture/refined_snapshot.h"
#include "sender_daemon/trainer/refined_state.h"

namespace dws {
namespace {

Status AttemptGivenUp(uint64_t version) {
  return CancelledError("the time for version {} is over: nothing of it is kept", version);
}

}  // namespace

TrainerSession::TrainerSession(Options options, Parts parts)
    : options_(std::move(options)), parts_(std::move(parts)), last_session_(FirstSession()) {}

Result<v1::RegisterReply> TrainerSession::Register(const v1::RegisterRequest& request,
                                                   std::optional<UnixPeer> peer) {
  DWS_RETURN_IF_ERROR(parts_.drain->Admit("a registration"));
  DWS_ASSIGN_OR_RETURN(Registration registration, ParseRegistration(request));
  if (registration.job_id != options_.job_id) {
    return InvalidArgumentError("the trainer belongs to job '{}', this sender to job '{}'",
                                registration.job_id, options_.job_id);
  }
  if (registration.trainer_rank != options_.trainer_rank) {
    return InvalidArgumentError("trainer rank {} connected to the sender of rank {}",
                                registration.trainer_rank.value(), options_.trainer_rank.value());
  }
  DWS_RETURN_IF_ERROR(CheckAdmission(registration));
  const SenderLedgerState ledger = parts_.ledger->state();
  v1::RegisterReply reply;
  // The last captured version, recorded or not, because its number is used up.
  if (ledger.stream() == registration.stream) {
    reply.set_last_version(LastVersion().value_or(WeightVersion(0)).value());
  }
  const uint64_t session = ++last_session_;
  // The callbacks get the registration's id through `id`: they run after Expect has returned it.
  auto id = std::make_shared<std::promise<HandleRegistrationId>>();
  std::shared_future<HandleRegistrationId> handle = id->get_future().share();
  DWS_ASSIGN_OR_RETURN(
      const HandleSocket::Registration expected,
      parts_.handles->Expect({.descriptor_count = DescriptorCount(registration.regions),
                              .peer = peer,
                              .on_descriptors =
                                  [this, session, handle, registration = std::move(registration)](
                                      std::vector<UniqueFd> fds, UniqueFd connection) {
                                    return OnDescriptors(session, registration, handle.get(),
                                                         std::move(fds), std::move(connection));
                                  },
                              .on_hangup =
                                  [this, session](const Status&) {
                                    if (!parts_.executor->Post(
                                            [this, session] { OnHangup(session); })) {
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
  const SenderLedgerState ledger = parts_.ledger->state();
  DWS_RETURN_IF_ERROR(ledger.CheckOpen(registration.stream));
  if (ledger.stream() != registration.stream) {
    const std::string ahead = AheadOfClock(registration.stream, parts_.wall_clock->Now());
    if (!ahead.empty()) {
      return FailedPreconditionError("stream {} is refused: {}", ToString(registration.stream),
                                     ahead);
    }
  }
  if (state_ != nullptr && state_->stream == registration.stream &&
      state_->declared != registration.layout) {
    return FailedPreconditionError(
        "the layout of stream {} changed: a stream keeps its layout, start a new one with a higher "
        "incarnation",
        ToString(registration.stream));
  }
  return OkStatus();
}

Status TrainerSession::OnDescriptors(uint64_t session, const Registration& registration,
                                     HandleRegistrationId handle, std::vector<UniqueFd> descriptors,
                                     UniqueFd connection) {
  auto memory = std::make_shared<HandedOver>();
  memory->connection = std::move(connection);
  DWS_ASSIGN_OR_RETURN(memory->regions, ImportRegions(registration.regions, std::move(descriptors),
                                                      Access::kReadOnly, parts_.devices));
  // The trainer gets the outcome as the answer on the handle socket. Other clients of the socket
  // wait meanwhile: those are processes that want to take this trainer's place.
  return RunOn(*parts_.executor, limits::kRpcDeadline, "the registration",
               [this, session, registration, handle, memory] {
                 const Status activated =
                     Activate(session, registration, handle, std::move(*memory));
                 if (activated.ok() && !parts_.executor->Post([this, session] {
                       if (!live_.has_value() || live_->session != session) return;
                       live_->TakeMemory(*state_->snapshot, *parts_.pool);
                     })) {
                   LogWarning("memory_not_taken", {{"reason", "too many calls wait"}});
                 }
                 return activated;
               });
}

Status TrainerSession::Activate(uint64_t session, Registration registration,
                                HandleRegistrationId handle, HandedOver memory) {
  if (live_.has_value() && live_->session > session) {
    return FailedPreconditionError("another trainer registered for rank {} meanwhile",
                                   registration.trainer_rank.value());
  }
  DWS_RETURN_IF_ERROR(parts_.drain->Admit("a registration"));
  DWS_RETURN_IF_ERROR(CheckAdmission(registration));  // others may have changed it meanwhile
  Live live{.session = session, .handle = handle};
  const RankLayout layout =
      Continues(registration) ? state_->layout()
                              : CutAsBefore(parts_.cuts, registration.stream, registration.layout);
  if (registration.ring.has_value()) {
    DWS_CHECK(memory.regions.size() == 1);
    live.ring = std::get<HostRegion>(std::move(memory.regions.front()));
  } else {
    DWS_ASSIGN_OR_RETURN(live.resident, ResidentSource::Create(layout, std::move(memory.regions),
                                                               registration.places, on_devices_));
  }
  const bool fenced = live_.has_value();
  if (fenced) {
    LogWarning("trainer_fenced", {{"session", live_->session}, {"by", session}});
    const HandleRegistrationId old = live_->handle;
    live_.reset();  // an open version is undone
    if (parts_.views != nullptr) parts_.views->OnGivenUp();
    present_.store(false);
    parts_.handles->Drop(old);
  }
  Result<RankStatePtr> state = OpenState(registration, layout);
  if (!state.ok()) {
    if (fenced) parts_.on_gone();  // there is no trainer now
    return state.status();
  }
  state_ = *std::move(state);
  DWS_CHECK(state_ != nullptr && state_->stream == registration.stream);
  live.registration = std::move(registration);
  LogInfo("trainer_registered", {{"client", live.registration.client},
                                 {"stream", ToString(state_->stream)},
                                 {"tensors", state_->layout().shards().size()},
                                 {"bytes", state_->layout().size_bytes()}});
  live.connection = std::move(memory.connection);
  live_ = std::move(live);
  present_.store(true);
  parts_.on_state(state_);
  return OkStatus();
}

bool TrainerSession::Continues(const Registration& registration) const {
  return state_ != nullptr && state_->stream == registration.stream &&
         state_->declared == registration.layout && state_->world_size == registration.world_size;
}

// Returns the current state if stream and layout are the same, otherwise a new one.
Result<RankStatePtr> TrainerSession::OpenState(const Registration& registration,
                                               const RankLayout& layout) {
  if (Continues(registration)) return state_;
  wishes_.clear();  // receivers ask again, by the new layout
  DWS_RETURN_IF_ERROR(parts_.pipeline->Drain(limits::kRpcDeadline));
  // Also for the same stream in a new process, which has no snapshot: a higher epoch, and full
  // tensors next.
  const RankEpoch epoch =
      std::max(options_.epoch_floor, parts_.ledger->state().NextEpoch(registration.stream));
  DWS_ASSIGN_OR_RETURN(auto snapshot, Snapshot::Create(layout, options_.huge_pages));
  auto log = std::make_shared<DeltaLog>(layout, options_.log_limits);
  DWS_RETURN_IF_ERROR(
      parts_.ledger->Append(StreamOpened{.stream = registration.stream, .rank_epoch = epoch}));
  DWS_KILLPOINT("sender.register.after_record");
  const bool begins = !parts_.ledger->state().last_version().has_value();
  return std::make_shared<const RankState>(RankState{.stream = registration.stream,
                                                     .trainer_rank = registration.trainer_rank,
                                                     .world_size = registration.world_size,
                                                     .rank_epoch = epoch,
                                                     .begins_stream = begins,
                                                     .declared = registration.layout,
                                                     .snapshot = std::move(snapshot),
                                                     .log = std::move(log)});
}

Status TrainerSession::CheckRefine(const StreamId& stream, const CutWishes& wishes) const {
  if (state_ == nullptr || state_->stream != stream) return OkStatus();  // an earlier stream
  CutWishes lacking = Lacking(state_->layout(), wishes);
  if (lacking.empty()) return OkStatus();
  Merge(lacking, wishes_);
  DWS_ASSIGN_OR_RETURN(const RankLayout finer, Refined(state_->layout(), lacking));
  DWS_RETURN_IF_ERROR(CheckKeepsParts(state_->layout(), finer));
  if (parts_.views != nullptr) DWS_RETURN_IF_ERROR(parts_.views->CheckLayout(finer));
  return CheckMemoryFor(*state_->snapshot);
}

Status TrainerSession::Refine(const StreamId& stream, const CutWishes& wishes) {
  if (state_ == nullptr || state_->stream != stream) return OkStatus();
  const CutWishes lacking = Lacking(state_->layout(), wishes);
  if (lacking.empty()) return OkStatus();
  DWS_RETURN_IF_ERROR(CheckRefine(stream, lacking));
  if (live_.has_value() && live_->open_version != nullptr) {
    Merge(wishes_, lacking);
    return OkStatus();
  }
  if (parts_.clock->Now() < refine_again_at_) {
    return UnavailableError("a refinement failed a moment ago and is tried again later");
  }
  if (!parts_.pipeline->Drain(kSealWait).ok()) {
    refine_again_at_ = parts_.clock->Now() + kRefineRetryDelay;
    return UnavailableError("versions are being recorded");
  }
  const TimePoint began = parts_.clock->Now();
  const Status refined = RefineNow(lacking);
  if (!refined.ok()) {
    refine_again_at_ = parts_.clock->Now() + kRefineRetryDelay;
    return refined;
  }
  LogInfo("layout_refined", {{"stream", ToString(stream)},
                             {"tensors", lacking.size()},
                             {"slices", state_->layout().slice_count()},
                             {"rank_epoch", state_->rank_epoch.value()},
                             {"seconds", ToSeconds(parts_.clock->Now() - began)}});
  parts_.on_refined(state_);
  return OkStatus();
}

Status TrainerSession::RefineNow(const CutWishes& lacking) {
  DWS_ASSIGN_OR_RETURN(RankLayout finer, Refined(state_->layout(), lacking));
  std::unique_ptr<ResidentSource> resident;
  if (live_.has_value() && live_->resident != nullptr) {
    DWS_ASSIGN_OR_RETURN(resident,
                         live_->resident->For(finer, live_->registration.places, on_devices_));
  }
  DWS_ASSIGN_OR_RETURN(RankStatePtr refined, RefinedState(*state_, std::move(finer),
                                                          {.pool = *parts_.pool,
                                                           .ledger = *parts_.ledger,
                                                           .cuts = parts_.cuts,
                                                           .log_limits = options_.log_limits}));
  if (resident != nullptr) live_->resident = std::move(resident);
  state_ = std::move(refined);
  if (live_.has_value()) live_->TakeMemory(*state_->snapshot, *parts_.pool);
  return OkStatus();
}

void TrainerSession::RefineLater() {
  if (wishes_.empty()) return;
  const bool posted = parts_.executor->Post([this] {
    if (wishes_.empty() || state_ == nullptr) return;
    const Status refined = Refine(state_->stream, std::exchange(wishes_, {}));
    // The receivers that still lack it ask again, and hear why.
    if (!refined.ok()) LogWarning("layout_not_refined", {{"reason", Message(refined)}});
  });
  if (!posted) LogWarning("layout_not_refined", {{"reason", "too many calls wait"}});
}

Status TrainerSession::ForgetStream(const StreamId& stream) {
  DWS_RETURN_IF_ERROR(CheckForgotten(parts_.ledger->state().stream(), stream));
  if (live_.has_value()) {
    return FailedPreconditionError(
        "the trainer of stream {} is registered (client '{}'): stop it first", ToString(stream),
        live_->registration.client);
  }
  DWS_RETURN_IF_ERROR(parts_.pipeline->Drain(limits::kRpcDeadline));
  DWS_RETURN_IF_ERROR(parts_.ledger->Append(StreamForgotten{.stream = stream}));
  state_.reset();
  wishes_.clear();
  LogWarning("stream_forgotten", {{"stream", ToString(stream)}});
  return OkStatus();
}

void TrainerSession::OnHangup(uint64_t session) {
  if (!live_.has_value() || live_->session != session) return;
  LogInfo("trainer_gone", {{"session", session}, {"client", live_->registration.client}});
  live_.reset();  // an open version is undone, memory is unmapped
  if (parts_.views != nullptr) parts_.views->OnGivenUp();
  present_.store(false);
  parts_.on_gone();
  RefineLater();
}

// Versions of a live registration.

Result<TrainerSession::Live*> TrainerSession::Find(uint64_t session) {
  DWS_CHECK(!live_.has_value() || state_ != nullptr);  // callers use the state of a live one
  if (live_.has_value() && live_->session == session) return &*live_;
  return FailedPreconditionError("session {} is no longer registered: {}", session,
                                 live_.has_value() ? "another trainer took its place"
                                                   : "register first, or again after a restart");
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
  if (parts_.views != nullptr) parts_.views->OnOpening();
  const std::optional<DeltaProfile> decided = Decided(options_.profile);
  const DeltaProfile profile = decided.has_value() ? *decided : state_->log->Asked();
  const bool fast_links = !options_.feeds_directory && (decided == DeltaProfile::kDirect ||
                                                        (!decided && state_->log->AllDirect()));
  const FullCause cause =
      full ? FullCause::kAsked : state_->snapshot->history().full_watch.Cause(fast_links);
  live.open_version = std::make_unique<Capture>(*state_->snapshot, *parts_.pool, version, profile,
                                                cause, WhenFetchable());
  if (cause != FullCause::kNone) parts_.on_replacing();
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
  if (Status recorded = parts_.ledger->CheckRecorded(captured.version, StateToken(captured.after));
      !recorded.ok()) {
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
