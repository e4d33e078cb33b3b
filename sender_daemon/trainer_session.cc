#include "sender_daemon/trainer_session.h"

#include <sys/random.h>

#include <algorithm>
#include <future>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/model/clock_bound.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// Sessions are numbered from here: a number is all that a call shows, so that those of another
// process, or of another trainer, are not to be guessed. 63 bits: they never wrap.
uint64_t RandomStart() {
  uint64_t number = 0;
  DWS_CHECK(::getrandom(&number, sizeof(number), 0) == static_cast<ssize_t>(sizeof(number)));
  return number >> 1;
}

}  // namespace

TrainerSession::TrainerSession(Options options, Parts parts)
    : options_(std::move(options)), parts_(std::move(parts)), last_session_(RandomStart()) {}

Result<v1::RegisterReply> TrainerSession::Register(const v1::RegisterRequest& request,
                                                   std::optional<UnixPeer> peer) {
  DWS_RETURN_IF_ERROR(parts_.drain->Admit("a registration"));
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
  v1::RegisterReply reply;
  // What is captured counts, recorded or not: its number is used up.
  if (ledger.stream() == registration.stream) {
    reply.set_last_version(LastVersion().value_or(WeightVersion(0)).value());
  }
  const uint64_t session = ++last_session_;
  // The callbacks learn the registration's id through `id`: they run after Expect has returned it.
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
      !(state_->layout() == registration.layout)) {
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
  // The trainer hears of the outcome as the answer on the handle socket.
  auto outcome = std::make_shared<std::promise<Status>>();
  std::future<Status> done = outcome->get_future();
  if (!parts_.executor->Post([this, session, registration, handle, memory, outcome] {
        outcome->set_value(Activate(session, registration, handle, std::move(*memory)));
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
  DWS_RETURN_IF_ERROR(
      CheckAdmission(registration));  // again: others may have come and gone since Register
  Live live{.session = session, .handle = handle};
  if (registration.ring.has_value()) {
    live.ring = std::get<HostRegion>(std::move(memory.regions.front()));
  } else {
    DWS_ASSIGN_OR_RETURN(live.resident,
                         ResidentSource::Create(registration.layout, std::move(memory.regions),
                                                registration.places));
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
  live.connection = std::move(memory.connection);
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
  // The same stream without its snapshot (this process is new): a higher epoch, full tensors next.
  const RankEpoch epoch =
      std::max(options_.epoch_floor, parts_.ledger->state().NextEpoch(registration.stream));
  DWS_ASSIGN_OR_RETURN(auto snapshot, Snapshot::Create(registration.layout));
  DWS_RETURN_IF_ERROR(
      parts_.ledger->Append(StreamOpened{.stream = registration.stream, .rank_epoch = epoch}));
  DWS_KILLPOINT("sender.register.after_record");
  return std::make_shared<const RankState>(
      RankState{.stream = registration.stream,
                .trainer_rank = registration.trainer_rank,
                .world_size = registration.world_size,
                .rank_epoch = epoch,
                .snapshot = std::move(snapshot),
                .log = std::make_shared<DeltaLog>(registration.layout, options_.log_limits)});
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
  LogWarning("stream_forgotten", {{"stream", ToString(stream)}});
  return OkStatus();
}

void TrainerSession::OnHangup(uint64_t session) {
  if (!live_.has_value() || live_->session != session) return;
  LogInfo("trainer_gone", {{"session", session}, {"client", live_->registration.client}});
  live_.reset();  // an open version is undone, memory is unmapped
  present_.store(false);
  parts_.on_gone();
}

}  // namespace dws
