#include "receiver_daemon/worker/worker.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/model/limits.h"

namespace dws {

Worker::Worker(Parts parts, Options options)
    : parts_(std::move(parts)),
      staging_bytes_max_(options.prepare.staging_bytes_max),
      verify_batch_bytes_(options.verify_batch_bytes),
      pause_timeout_(options.pause_timeout),
      cuda_(options.cuda),
      stale_(options.stale),
      preparer_(parts_.senders, parts_.pool, parts_.clock, std::move(options.prepare)),
      pipeline_(parts_.senders, parts_.ledger, parts_.pool, parts_.clock, options.pause_timeout),
      scrub_(options.scrub) {
  status_.version_since = parts_.clock.Now();
  status_.scrub.asked = scrub_.options();
}

Worker::~Worker() { DWS_CHECK(!thread_.joinable()); }

void Worker::Start() {
  {
    MutexLock lock(mutex_);
    running_ = true;
  }
  thread_ = std::thread([this] { Run(); });
}

bool Worker::RequestStop(Duration grace) {
  stopping_.store(true);
  parts_.changed.Notify();
  const TimePoint deadline = parts_.clock.Now() + grace;
  MutexLock lock(mutex_);
  while (running_ && !grace_over_ && parts_.clock.Now() < deadline) {
    ended_.WaitFor(mutex_, deadline - parts_.clock.Now());
  }
  return !running_;
}

void Worker::EndGrace() {
  MutexLock lock(mutex_);
  grace_over_ = true;
  ended_.NotifyAll();
}

void Worker::Join() {
  if (thread_.joinable()) thread_.join();
}

void Worker::Run() {
  uint64_t seen = 0;
  Duration delay = limits::kReconnectDelayMin;
  while (!stopping_.load()) {
    // Read before the state is: a change during the step wakes the next wait at once.
    if (!busy_) {
      const Duration scrub = scrub_.UntilDue(parts_.clock.Now()).value_or(Duration::max());
      seen = parts_.changed.WaitBeyond(seen, std::min<Duration>(limits::kReconnectDelayMax, scrub));
    }
    if (stopping_.load()) break;
    const Status status = Step();
    if (status.ok()) {
      delay = limits::kReconnectDelayMin;
      continue;
    }
    if (stopping_.load()) break;
    LogWarning("step_failed", {{"reason", ToString(status)}});
    AwaitRetry(seen, delay);
    seen = 0;
    delay = std::min<Duration>(delay * 2, limits::kReconnectDelayMax);
  }
  const Status reason = UnavailableError("the receiver is stopping");
  for (const ActiveVerify& active : verifies_) active.task->End(reason);
  parts_.desk.Close(reason);
  MutexLock lock(mutex_);
  running_ = false;
  ended_.NotifyAll();
}

// Not sooner, whatever changes meanwhile, unless the engine has gone: its memory is let go at once.
// Then again even if nothing changed.
void Worker::AwaitRetry(uint64_t seen, Duration delay) {
  const TimePoint until = parts_.clock.Now() + delay;
  while (!stopping_.load() && parts_.clock.Now() < until) {
    if (weights_ != nullptr && !EngineIsCurrent()) return;
    if (!busy_) {
      seen = parts_.changed.WaitBeyond(seen, until - parts_.clock.Now());
    } else if (LookForDrift()) {
      return;  // repaired or paused at once, not later
    }
  }
}

// Drift that a round has not repaired pauses the engine, whatever the reason: the one round is what
// it may go on for, so that the repair can be fetched before the pause.
Status Worker::Step() {
  const PulseWork work(parts_.pulse);
  const Status status = Round();
  ShowReadiness();  // a round that fails may not have come to it
  // A commit group's member has paused for drift already (TellDrift).
  if (live_.drifted && !drift_paused_ && parts_.group == nullptr) PauseForDrift(status);
  LookForDrift();
  return status;
}

Status Worker::Round() {
  // What is staged for a group is in flight until its leader has said what becomes of it.
  SetDrain(parts_.desk.draining() && !group_work_.staged.has_value());
  DWS_RETURN_IF_ERROR(AcceptStream());
  if (parts_.group != nullptr) return GroupRound();
  DWS_ASSIGN_OR_RETURN(const bool attached, RefreshEngine());
  return attached ? FollowTarget() : OkStatus();
}

Status Worker::FollowTarget() {
  std::optional<SyncTarget> target;
  if (!drained_) target = parts_.subscription.Target();
  if (target.has_value() && !weights_->layouts().Fits(*target)) {
    // The stream has changed since the engine was looked at, or its ranks do not fit each other.
    return parts_.subscription.Layouts().status();
  }
  if (target.has_value()) DWS_RETURN_IF_ERROR(CheckNumber(*target));
  const OperatorTaskPtr resync = parts_.desk.resync();
  ReceiverView view{.drained = drained_,
                    .resync = resync != nullptr,
                    .live = live_.at,
                    .drifted = live_.drifted,
                    .target = std::nullopt};
  if (target.has_value()) view.target = target->at();
  switch (NextStep(view)) {
    case ReceiverStep::kHold:
      SetTrouble("");
      SetReadiness(false, live_.proved()  ? ""
                          : live_.drifted ? DriftReason()
                                          : "the engine is paused");
      return OkStatus();
    case ReceiverStep::kResync:
      return Resync(*resync, target);
    case ReceiverStep::kCurrent:
      SetTrouble("");
      SetReadiness(true, "");
      return OkStatus();
    case ReceiverStep::kAwait: {
      const std::string missing = parts_.subscription.MissingTarget();
      if (live_.drifted) return UnavailableError("{}", missing);
      SetReadiness(false, "the engine is paused: " + missing);
      return OkStatus();
    }
    case ReceiverStep::kAdopt:
      SetReadiness(false, fmt::format("the engine is paused: version {} is being fetched",
                                      target->version.value()));
      DWS_RETURN_IF_ERROR(AdoptCommitted(*target));
      return Advance(*target, Way::kDelta);
    case ReceiverStep::kAdvance:
      return Advance(*target, Way::kDelta);
  }
  return OkStatus();
}

Status Worker::AcceptStream() {
  for (const ForgetTask& asked : parts_.desk.TakeForgets()) {
    asked.task->End(ForgetStream(asked.stream));
  }
  const std::optional<StreamId> stream = parts_.subscription.stream();
  if (!stream.has_value() || parts_.ledger.state().stream() == stream) {
    SetUnrecorded("");
    return OkStatus();
  }
  LogInfo("stream_accepted", {{"stream", ToString(*stream)}});
  const Status recorded = parts_.ledger.Append(StreamAccepted{.stream = *stream});
  DWS_KILLPOINT("receiver.stream.after_record");
  // Its versions cannot be followed, and those of the stream before it come no more.
  SetUnrecorded(recorded.ok() ? ""
                              : fmt::format("stream {} cannot be recorded: {}", ToString(*stream),
                                            Message(recorded)));
  return Annotate(recorded, "recording the stream");
}

Result<bool> Worker::RefreshEngine() {
  const Result<LayoutSetPtr> layouts = parts_.subscription.Layouts();
  if (layouts.ok()) parts_.registry.EndOthersThan(**layouts);
  std::optional<AttachedEngine> engine = parts_.registry.Engine();
  if (!engine.has_value()) {
    ForgetEngine();
    SetReadiness(false, parts_.registry.Missing());
    return false;
  }
  if (weights_ == nullptr || weights_->generation() != engine->generation) {
    ForgetEngine();
    Result<EngineWeightsPtr> weights =
        EngineWeights::Create(engine->layouts, engine->memory, parts_.registry.coverage(), cuda_);
    if (!weights.ok()) {
      parts_.registry.EndAll(weights.status());
      SetReadiness(false, std::string(Message(weights.status())));
      return false;
    }
    weights_ = *std::move(weights);
    engine_ = std::move(engine);
    SetPaused(true);
    if (parts_.group != nullptr) TellEngine();  // not only once all memory has been read
  }
  if (!live_.known()) {
    const TimePoint begin = parts_.clock.Now();
    std::vector<LiveState::Rank> ranks;
    for (uint32_t r = 0; r < weights_->layouts().world_size(); ++r) {
      Result<std::vector<SliceState>> states = weights_->ComputeStates(TrainerRank(r), parts_.pool);
      if (!states.ok()) {
        LoseEngine(states.status());
        return false;
      }
      ranks.push_back({.slices = *std::move(states), .published = {}, .state_token = {}});
    }
    live_.ranks = std::move(ranks);
    LogInfo("digests_computed", {{"generation", weights_->generation().value()},
                                 {"seconds", ToSeconds(parts_.clock.Now() - begin)}});
    group_work_.adoption_tried = false;
    DWS_KILLPOINT("receiver.attach.after_digests");
  }
  return true;
}

void Worker::LoseEngine(const Status& why) {
  const Status reason = UnavailableError("live memory cannot be read: {}", Message(why));
  LogError("engine_memory_lost",
           {{"generation", weights_->generation().value()}, {"reason", Message(reason)}});
  parts_.registry.EndAll(reason);
  SetReadiness(false, std::string(Message(reason)));
}

void Worker::ForgetEngine() {
  live_.Forget();
  group_work_.staged.reset();  // before the memory it was staged for
  weights_.reset();
  resync_read_.reset();  // would keep the memory of an engine that is gone
  engine_.reset();
  scrub_.Forget();  // so would this
  CountScrub(0, false);
  drift_paused_ = false;
  SetPaused(false);
  PublishLive();
}

}  // namespace dws
