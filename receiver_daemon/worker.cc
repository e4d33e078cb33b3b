#include "receiver_daemon/worker.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/model/limits.h"
#include "receiver_daemon/lease_control.h"

namespace dws {

Worker::Worker(Parts parts, Options options)
    : parts_(std::move(parts)),
      staging_bytes_max_(options.prepare.staging_bytes_max),
      verify_batch_bytes_(options.verify_batch_bytes),
      pause_timeout_(options.pause_timeout),
      preparer_(parts_.senders, parts_.pool, parts_.clock, std::move(options.prepare)),
      pipeline_(parts_.senders, parts_.ledger, parts_.pool, parts_.clock, options.pause_timeout) {}

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
    if (!busy_) seen = parts_.changed.WaitBeyond(seen, limits::kReconnectDelayMax);
    if (stopping_.load()) break;
    const Status status = Step();
    if (status.ok()) {
      delay = limits::kReconnectDelayMin;
      continue;
    }
    if (stopping_.load()) break;
    LogWarning("step_failed", {{"reason", ToString(status)}});
    // Not sooner, whatever changes meanwhile; then again even if nothing changed.
    const TimePoint until = parts_.clock.Now() + delay;
    for (uint64_t now = seen; !stopping_.load() && parts_.clock.Now() < until;) {
      if (busy_) {
        const bool had_drifted = live_.drifted;
        VerifyNext();
        if (live_.drifted && !had_drifted) break;  // repaired or paused at once, not later
      } else {
        now = parts_.changed.WaitBeyond(now, until - parts_.clock.Now());
      }
    }
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

// Drift that a round has not repaired pauses the engine, whatever the reason: the one round is what
// it may go on for, so that the repair can be fetched before the pause.
Status Worker::Step() {
  const PulseWork work(parts_.pulse);
  const Status status = Round();
  if (live_.drifted && !drift_paused_) PauseForDrift(status);
  VerifyNext();
  return status;
}

Status Worker::Round() {
  SetDrain(parts_.desk.draining());
  DWS_RETURN_IF_ERROR(AcceptStream());
  DWS_ASSIGN_OR_RETURN(const bool attached, RefreshEngine());
  if (!attached) return OkStatus();
  if (drained_) {
    SetTrouble("");
    SetReadiness(false, live_.proved()  ? ""
                        : live_.drifted ? DriftReason()
                                        : "the engine is paused");
    return OkStatus();
  }
  const std::optional<SyncTarget> target = parts_.subscription.Target();
  if (target.has_value() && !weights_->layouts().Fits(*target)) {
    // The stream has changed since the engine was looked at, or its ranks do not fit each other.
    return parts_.subscription.Layouts().status();
  }
  if (const OperatorTaskPtr resync = parts_.desk.resync()) return Resync(*resync, target);
  const bool current =
      live_.proved() && (!target.has_value() || (live_.at->stream == target->stream &&
                                                 live_.at->version >= target->version));
  if (current) {
    SetTrouble("");
    SetReadiness(true, "");
    return OkStatus();
  }
  if (!target.has_value()) {
    const std::string missing = parts_.subscription.MissingTarget();
    if (live_.drifted) return UnavailableError("{}", missing);
    SetReadiness(false, "the engine is paused: " + missing);
    return OkStatus();
  }
  Status status = OkStatus();
  if (!live_.at.has_value()) {
    SetReadiness(false, fmt::format("the engine is paused: version {} is being fetched",
                                    target->version.value()));
    status = AdoptCommitted(*target);
  }
  return status.ok() ? Advance(*target, Way::kDelta) : status;
}

Status Worker::AcceptStream() {
  const std::optional<StreamId> stream = parts_.subscription.stream();
  if (!stream.has_value() || parts_.ledger.state().stream() == stream) return OkStatus();
  LogInfo("stream_accepted", {{"stream", ToString(*stream)}});
  return Annotate(parts_.ledger.Append(StreamAccepted{.stream = *stream}), "recording the stream");
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
    Result<EngineWeightsPtr> weights = EngineWeights::Create(engine->layouts, engine->memory);
    if (!weights.ok()) {
      parts_.registry.EndAll(weights.status());
      SetReadiness(false, std::string(Message(weights.status())));
      return false;
    }
    weights_ = *std::move(weights);
    engine_ = std::move(engine);
    SetPaused(true);
  }
  if (!live_.known()) {
    const TimePoint begin = parts_.clock.Now();
    for (uint32_t r = 0; r < weights_->layouts().world_size(); ++r) {
      live_.ranks.push_back({.slices = weights_->ComputeStates(TrainerRank(r), parts_.pool),
                             .published = {},
                             .state_token = {}});
    }
    LogInfo("digests_computed", {{"generation", weights_->generation().value()},
                                 {"seconds", ToSeconds(parts_.clock.Now() - begin)}});
  }
  return true;
}

Status Worker::AdoptCommitted(const SyncTarget& target) {
  const auto& committed = parts_.ledger.state().committed();
  if (!committed.has_value() || committed->stream != target.stream ||
      committed->version >= target.version) {
    return OkStatus();
  }
  const std::optional<SyncTarget> last = parts_.subscription.TargetAt(committed->version);
  if (!last.has_value() || !weights_->layouts().Fits(*last)) return OkStatus();
  const TimePoint begin = parts_.clock.Now();
  Result<std::optional<Prepared>> prepared = preparer_.PrepareAdoption(live_, *last);
  if (!prepared.ok()) {
    // The last version is a short cut, the target is what counts.
    return absl::IsAborted(prepared.status()) ? OkStatus() : prepared.status();
  }
  if (!prepared->has_value()) return OkStatus();
  return Commit(**prepared, begin);
}

Status Worker::Advance(const SyncTarget& target, Way way) {
  const TimePoint begin = parts_.clock.Now();
  SetStage("fetching", target.version);
  Result<Prepared> prepared = preparer_.Prepare(*weights_, live_, target, way);
  Status status = prepared.status();
  if (status.ok()) {
    SetStage("committing", target.version);
    SetStaging(prepared->staging_bytes());
    status = Commit(*prepared, begin);
  }
  SetStage("idle", std::nullopt);
  PublishLive();
  SetTrouble(status.ok() ? ""
                         : fmt::format("version {} cannot be reached: {}", target.version.value(),
                                       Message(status)));
  if (live_.proved()) {
    SetReadiness(true, "");
  } else if (!live_.drifted) {
    SetReadiness(false, fmt::format("the engine is paused: version {}: {}", target.version.value(),
                                    Message(status)));
  }
  return status;
}

Status Worker::Commit(const Prepared& prepared, TimePoint begin) {
  LeaseControl control(engine_->leases, parts_.clock, parts_.pulse);
  const CommitPipeline::Engine engine{
      .control = control, .weights = *weights_, .is_current = [this] {
        const std::optional<AttachedEngine> now = parts_.registry.Engine();
        return now.has_value() && now->generation == weights_->generation();
      }};
  const bool first = !live_.at.has_value();
  const TimePoint staged = parts_.clock.Now();
  CommitReport report{.version = prepared.target.version, .repaired = prepared.repairs()};
  uint64_t full_slices = 0;
  for (uint32_t r = 0; r < prepared.ranks.size(); ++r) {
    const PreparedRank& rank = prepared.ranks[r];
    const RankLayout& layout = weights_->layouts().rank(TrainerRank(r));
    full_slices += rank.full_slices.size();
    report.delta_bytes += rank.fetched_bytes - rank.full_bytes();
    report.full_bytes += rank.full_bytes();
    report.nnz += rank.nnz;
    report.elements += layout.element_count();
    report.model_bytes += layout.size_bytes();
    report.fetch = std::max(report.fetch, rank.fetch);
    report.stage = std::max(report.stage, rank.stage);
  }
  const Result<Duration> paused = pipeline_.Commit(engine, live_, prepared);
  if (!paused.ok()) {
    if (!live_.known()) SetPaused(true);  // in the middle of writing
    if (absl::IsDataLoss(paused.status())) CountWriteMismatch();
    return paused.status();
  }
  // What drift had paused before did not wait for this commit alone.
  const Duration pause = drift_paused_ ? Duration::zero() : *paused;
  SetPaused(false);
  drift_paused_ = false;
  PublishLive();
  pipeline_.Acknowledge(prepared, pause, staged - begin);
  report.pause = pause;
  report.commit = parts_.clock.Now() - staged;
  PublishCommit(report, first ? full_slices : 0);
  LogInfo("committed", {{"version", report.version.value()},
                        {"fetched_bytes", report.delta_bytes + report.full_bytes},
                        {"pause_ms", ToSeconds(pause) * 1e3},
                        {"seconds", ToSeconds(parts_.clock.Now() - begin)},
                        {"repaired", report.repaired},
                        {"first_release", first}});
  return OkStatus();
}

void Worker::ForgetEngine() {
  live_.Forget();
  weights_.reset();
  resync_read_.reset();  // would keep the memory of an engine that is gone
  engine_.reset();
  drift_paused_ = false;
  SetPaused(false);
  PublishLive();
}

}  // namespace dws
