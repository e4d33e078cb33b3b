#include "sender_daemon/trainer/trainer_session.h"

#include <algorithm>
#include <future>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log/log.h"
#include "common/model/clock_bound.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/sockets/unix_socket.h"
#include "sender_daemon/capture/refined_snapshot.h"
#include "sender_daemon/trainer/refined_state.h"

namespace dws {

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
  auto outcome = std::make_shared<std::promise<Status>>();
  std::future<Status> done = outcome->get_future();
  if (!parts_.executor->Post([this, session, registration, handle, memory, outcome] {
        const Status activated = Activate(session, registration, handle, std::move(*memory));
        outcome->set_value(activated);
        if (activated.ok()) live_->TakeMemory(*state_->snapshot, *parts_.pool);
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
  DWS_RETURN_IF_ERROR(CheckReadable(finer));
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

}  // namespace dws
