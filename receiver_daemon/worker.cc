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
      preparer_(parts_.senders, parts_.pool, std::move(options.prepare)),
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
  while (running_ && parts_.clock.Now() < deadline) {
    ended_.WaitFor(mutex_, deadline - parts_.clock.Now());
  }
  return !running_;
}

void Worker::Join() {
  if (thread_.joinable()) thread_.join();
}

void Worker::Run() {
  uint64_t seen = 0;
  Duration delay = limits::kReconnectDelayMin;
  while (!stopping_.load()) {
    // Read before the state is: a change during the step wakes the next wait at once.
    seen = parts_.changed.WaitBeyond(seen, limits::kReconnectDelayMax);
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
      now = parts_.changed.WaitBeyond(now, until - parts_.clock.Now());
    }
    seen = 0;
    delay = std::min<Duration>(delay * 2, limits::kReconnectDelayMax);
  }
  MutexLock lock(mutex_);
  running_ = false;
  ended_.NotifyAll();
}

Status Worker::Step() {
  DWS_RETURN_IF_ERROR(AcceptStream());
  DWS_ASSIGN_OR_RETURN(const bool attached, RefreshEngine());
  if (!attached) return OkStatus();
  const std::optional<SyncTarget> target = parts_.subscription.Target();
  if (target.has_value() && !weights_->layouts().Fits(*target)) {
    // The stream has changed since the engine was looked at, or its ranks do not fit each other.
    return parts_.subscription.Layouts().status();
  }
  const bool current =
      live_.at.has_value() && (!target.has_value() || (live_.at->stream == target->stream &&
                                                       live_.at->version >= target->version));
  if (current) {
    SetTrouble("");
    SetReadiness(true, "");
    return OkStatus();
  }
  if (!target.has_value()) {
    SetReadiness(false, "the engine is paused: " + parts_.subscription.MissingTarget());
    return OkStatus();
  }
  Status status = OkStatus();
  if (!live_.at.has_value()) {
    SetReadiness(false, fmt::format("the engine is paused: version {} is being fetched",
                                    target->version.value()));
    status = AdoptCommitted(*target);
  }
  if (status.ok()) status = Advance(*target);
  SetStage("idle", std::nullopt);
  PublishLive();
  SetTrouble(status.ok() ? ""
                         : fmt::format("version {} cannot be reached: {}", target->version.value(),
                                       Message(status)));
  if (live_.at.has_value()) {
    SetReadiness(true, "");
  } else {
    SetReadiness(false, fmt::format("the engine is paused: version {}: {}", target->version.value(),
                                    Message(status)));
  }
  return status;
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

Status Worker::Advance(const SyncTarget& target) {
  const TimePoint begin = parts_.clock.Now();
  SetStage("fetching", target.version);
  DWS_ASSIGN_OR_RETURN(const Prepared prepared, preparer_.Prepare(*weights_, live_, target));
  SetStage("committing", target.version);
  return Commit(prepared, begin);
}

Status Worker::Commit(const Prepared& prepared, TimePoint begin) {
  LeaseControl control(engine_->leases, parts_.clock);
  const CommitPipeline::Engine engine{
      .control = control, .weights = *weights_, .is_current = [this] {
        const std::optional<AttachedEngine> now = parts_.registry.Engine();
        return now.has_value() && now->generation == weights_->generation();
      }};
  const bool first = !live_.at.has_value();
  const Duration stage_time = parts_.clock.Now() - begin;
  DWS_ASSIGN_OR_RETURN(const Duration pause, pipeline_.Commit(engine, live_, prepared));
  PublishLive();
  pipeline_.Acknowledge(prepared, pause, stage_time);
  uint64_t fetched_bytes = 0;
  for (const PreparedRank& rank : prepared.ranks) fetched_bytes += rank.fetched_bytes;
  LogInfo("committed", {{"version", prepared.target.version.value()},
                        {"fetched_bytes", fetched_bytes},
                        {"pause_ms", ToSeconds(pause) * 1e3},
                        {"seconds", ToSeconds(parts_.clock.Now() - begin)},
                        {"repaired", prepared.repairs()},
                        {"first_release", first}});
  MutexLock lock(mutex_);
  ++status_.commits;
  if (prepared.repairs()) ++status_.repairs;
  status_.last_pause_seconds = ToSeconds(pause);
  return OkStatus();
}

void Worker::ForgetEngine() {
  live_.Forget();
  weights_.reset();
  engine_.reset();
  PublishLive();
}

void Worker::PublishLive() {
  parts_.subscription.SetLive(live_.at);
  std::vector<Digest> tokens;
  for (const LiveState::Rank& rank : live_.ranks) tokens.push_back(rank.state_token);
  MutexLock lock(mutex_);
  status_.live = live_.at;
  status_.state_token = live_.at.has_value() ? EngineToken(tokens) : Digest{};
}

void Worker::SetStage(std::string stage, std::optional<WeightVersion> target) {
  MutexLock lock(mutex_);
  status_.stage = std::move(stage);
  status_.target = target;
}

void Worker::SetTrouble(std::string trouble) {
  MutexLock lock(mutex_);
  status_.trouble = std::move(trouble);
}

void Worker::SetReadiness(bool ready, std::string reason) {
  {
    MutexLock lock(mutex_);
    if (status_.ready == ready && status_.reason == reason) return;
    status_.ready = ready;
    status_.reason = reason;
  }
  if (parts_.on_readiness) parts_.on_readiness(ready, reason);
}

WorkerStatus Worker::status() const {
  MutexLock lock(mutex_);
  return status_;
}

}  // namespace dws
