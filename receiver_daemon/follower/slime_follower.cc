#include "receiver_daemon/follower/slime_follower.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log/log.h"
#include "common/formats/slime_delta/local/write_down.h"
#include "common/sync_state/presence_limits.h"

namespace dws {
namespace {

constexpr std::chrono::seconds kRetryDelayMax{5};

bool Weak(slime::BaseProof proof) { return proof >= slime::BaseProof::kFolder; }

// `before`: the proof of the version before. A weak proof is a warning when it begins to be weak.
void LogApplied(const slime::ApplyReport& report, double seconds, slime::BaseProof before) {
  if (report.change.any()) {
    LogWarning("version_changes_tensors", {{"version", report.version},
                                           {"added", slime::ShortList(report.change.added)},
                                           {"removed", slime::ShortList(report.change.removed)}});
  }
  if (Weak(report.proof) && report.proof != before) {
    LogWarning("base_not_proved",
               {{"version", report.version},
                {"taken_from", NameOf(report.proof)},
                {"reason",
                 "versions of this writer do not name their run, and this one does not state the "
                 "checksums of all tensors: a delta of another run that touches only tensors that "
                 "are equal in both would be applied too; --slime-proof=content refuses such "
                 "deltas"}});
  }
  LogInfo("version_applied", {{"version", report.version},
                              {"tensors", report.tensor_count},
                              {"seconds", seconds},
                              {"base_proved_by", NameOf(report.proof)}});
}

}  // namespace

SlimeFollower::SlimeFollower(Parts parts, Options options)
    : parts_(std::move(parts)),
      options_(std::move(options)),
      versions_(options_.folder, parts_.files, parts_.clock, options_.stale.after,
                [this] { SetStage("applying"); }),
      watch_(parts_.clock.Now()),
      version_since_(parts_.clock.Now()),
      wait_(options_.poll),
      loop_([this] { return Round(); }) {
  {
    MutexLock lock(mutex_);
    watch_.Observe(true, parts_.clock.Now());  // nothing has failed yet
  }
  if (parts_.make_control == nullptr) return;
  engine_ = std::make_unique<EngineLoader>(
      EngineLoader::Parts{
          .make_control = parts_.make_control,
          .on_holds =
              [this](std::optional<uint64_t> version) {
                MutexLock lock(mutex_);
                view_.loaded = version;
              },
          .record = LoadedRecord(parts_.files, options_.checkpoint, options_.engine),
          .clock = parts_.clock},
      options_.pause_timeout);
  MutexLock lock(mutex_);
  view_.has_engine = true;
}

SlimeFollower::~SlimeFollower() { DWS_CHECK(!loop_.started()); }

void SlimeFollower::Start() { loop_.Start(); }

void SlimeFollower::Stop() {
  loop_.Stop();
  std::vector<std::function<void(const Status&)>> left;
  {
    MutexLock lock(mutex_);
    left.swap(verifies_);
  }
  for (const auto& done : left) done(UnavailableError("the receiver is stopping"));
}

void SlimeFollower::SetDrained(bool drained) {
  {
    MutexLock lock(mutex_);
    view_.drained = drained;
  }
  loop_.Wake();
}

void SlimeFollower::RequestVerify(std::function<void(const Status&)> done) {
  {
    MutexLock lock(mutex_);
    verifies_.push_back(std::move(done));
  }
  loop_.Wake();
}

void SlimeFollower::AwaitChange(Duration timeout) const {
  MutexLock lock(mutex_);
  seen_.WaitFor(mutex_, timeout);
}

bool SlimeFollower::BeginLooking() {
  MutexLock lock(mutex_);
  if (view_.drained || loop_.stopping()) return false;
  view_.stage = "looking";
  return true;
}

void SlimeFollower::SetStage(std::string stage) {
  MutexLock lock(mutex_);
  if (view_.stage == stage) return;
  view_.stage = std::move(stage);
  seen_.NotifyAll();
}

Duration SlimeFollower::Round() {
  const Status status = Step();
  if (const std::string trouble(Message(status)); !status.ok() && trouble != logged_) {
    LogWarning("follow_failed", {{"reason", ToString(status)}});
    logged_ = trouble;
  } else if (status.ok()) {
    logged_.clear();
  }
  wait_ = status.ok()
              ? options_.poll
              : std::max<Duration>(options_.poll, std::min<Duration>(wait_ * 2, kRetryDelayMax));
  ServeVerifies();
  return wait_;
}

Status SlimeFollower::Step() {
  const WorkScope work(parts_.liveness);
  BeginStep();
  incomplete_.reset();
  unproved_ = false;
  BeginLooking();
  Status status = Open();
  DWS_CHECK(!status.ok() || local_ != nullptr);
  if (status.ok() && engine_ != nullptr && engine_->may_read()) {
    status = Load();
    // Operators still see how far the engine is behind.
    if (!status.ok() && versions_.List().ok()) {
      MutexLock lock(mutex_);
      view_.newest = versions_.newest();
      view_.listed = true;
    }
  }
  if (status.ok()) status = Follow();
  if (local_ != nullptr) local_->Release();
  SetStage("idle");
  EndStep(status);
  return status;
}

Status SlimeFollower::RunBeforeRead() {
  if (!options_.before_read.given() || !BeginLooking()) return OkStatus();
  const WaitScope wait(parts_.liveness);
  local_->Release();
  const Status ran =
      options_.before_read.Run(fmt::to_string(local_->version()), limits::kSharedHookDeadline,
                               [this] { return !loop_.stopping(); });
  DWS_RETURN_IF_ERROR(local_->Retake());
  if (loop_.stopping()) return OkStatus();
  if (const std::string trouble(Message(ran)); trouble != hook_trouble_) {
    hook_trouble_ = trouble;
    if (!ran.ok()) LogWarning("slime_before_read_failed", {{"reason", trouble}});
  }
  return options_.before_read_required ? Annotate(ran, "before the look at the folder")
                                       : OkStatus();
}

Status SlimeFollower::Follow() {
  Status status = RunBeforeRead();
  while (status.ok() && BeginLooking()) {
    const Result<bool> applied = ApplyNext();
    status = applied.status();
    if (!applied.ok() || !*applied) break;
  }
  if (local_->halfway()) {  // the next Open completes it
    local_.reset();
    return status;
  }
  // Load what was applied and watch the engine, even if the command or a later version failed.
  const Status loaded = Load();
  if (status.ok() || loaded.ok()) return status.ok() ? loaded : status;
  return MakeStatus(loaded.code(), fmt::format("{}; also: {}", Message(loaded), Message(status)));
}

void SlimeFollower::CloseCheckpoint() {
  local_.reset();
  versions_.Forget();
  if (engine_ != nullptr) engine_->Forget();
}

Status SlimeFollower::Open() {
  if (local_ != nullptr && !local_->in_place()) {
    LogWarning("checkpoint_replaced", {{"checkpoint", options_.checkpoint}});
    CloseCheckpoint();
  }
  if (local_ != nullptr) {
    const Status retaken = local_->Retake();
    if (!absl::IsAborted(retaken)) return retaken;
    LogWarning("checkpoint_changed", {{"reason", Message(retaken)}});
    CloseCheckpoint();
  }
  SetStage("opening");
  DWS_ASSIGN_OR_RETURN(
      local_, slime::LocalCheckpoint::Open(parts_.files, parts_.pool, options_.checkpoint,
                                           {.verify_all = options_.verify_all,
                                            .proof = options_.proof,
                                            .on_access = [liveness = parts_.liveness](const auto&) {
                                              if (liveness != nullptr) liveness->Beat();
                                            }}));
  LogInfo("checkpoint_opened", {{"checkpoint", options_.checkpoint},
                                {"version", local_->version()},
                                {"tensors", local_->checkpoint().tensors().size()},
                                {"bytes", local_->checkpoint().tensor_bytes()}});
  MutexLock lock(mutex_);
  view_.version = local_->version();
  return OkStatus();
}

Result<bool> SlimeFollower::ApplyNext() {
  const TimePoint begin = parts_.clock.Now();
  const auto applied = versions_.ApplyNext(*local_);
  incomplete_ = versions_.incomplete();
  unproved_ = !applied.ok() && versions_.unproved();
  const TimePoint end = parts_.clock.Now();
  MutexLock lock(mutex_);
  view_.newest = versions_.newest();
  view_.listed = view_.listed || applied.ok();
  if (!applied.ok() || !applied->has_value()) {
    if (!applied.ok()) return applied.status();
    return false;
  }
  DWS_KILLPOINT("follow.after_apply");
  const slime::ApplyReport& report = **applied;
  DWS_CHECK(report.version == local_->version());
  if (view_.version != report.version) version_since_ = end;
  view_.version = report.version;
  view_.applied += report.applied ? 1 : 0;
  view_.applied_tensors += report.tensor_count;
  view_.last_apply_seconds = ToSeconds(end - begin);
  if (report.applied) {
    history_.Add({.version = report.version,
                  .at = kSystemWallClock.Now(),
                  .apply_seconds = view_.last_apply_seconds});
  }
  view_.proof = report.proof;
  LogApplied(report, view_.last_apply_seconds, std::exchange(last_proof_, report.proof));
  return true;
}

Status SlimeFollower::Load() {
  if (engine_ == nullptr) return OkStatus();
  if (loop_.stopping()) return OkStatus();
  const uint64_t version = local_->version();
  // While drained an engine that runs is not paused either.
  if (engine_->holds() == version || (engine_->holds().has_value() && view().drained)) {
    return engine_->Check();
  }
  // Another program may have got the lock while the command before the look ran.
  DWS_RETURN_IF_ERROR(local_->Retake());
  SetStage("loading");
  DWS_ASSIGN_OR_RETURN(const std::optional<Duration> paused,
                       engine_->Load({.version = version, .contents = local_->contents()}));
  DWS_CHECK(engine_->holds() == version && !engine_->may_read());
  if (!paused.has_value()) {
    LogInfo("version_held", {{"version", version}});
    return OkStatus();
  }
  LogInfo("version_loaded", {{"version", version}, {"pause_seconds", ToSeconds(*paused)}});
  MutexLock lock(mutex_);
  ++view_.loads;
  view_.last_pause_seconds = ToSeconds(*paused);
  history_.ChangeWhile([pause = ToSeconds(*paused)](AppliedVersion& newest) {
    newest.pause_seconds = pause;
    return false;  // the engine has loaded the newest one alone
  });
  return OkStatus();
}

void SlimeFollower::ServeVerifies() {
  std::vector<std::function<void(const Status&)>> taken;
  {
    MutexLock lock(mutex_);
    taken.swap(verifies_);
  }
  if (taken.empty()) return;
  const WorkScope work(parts_.liveness);
  SetStage("verifying");
  Status status = FailedPreconditionError("the local checkpoint is not open: {}", view().trouble);
  if (local_ != nullptr) {
    status = local_->Retake();
    if (status.ok()) status = local_->Verify();
    local_->Release();
  }
  if (status.ok() && engine_ != nullptr) {
    const Result<std::string> checksum = engine_->Verify();
    if (!absl::IsUnimplemented(checksum.status())) status = checksum.status();
    if (checksum.ok()) LogInfo("engine_verified", {{"checksum", *checksum}});
  }
  SetStage("idle");
  for (const auto& done : taken) done(status);
}

// From here on: what other threads see. Progress is observed by beats, from outside the step,
// because the step's own thread may be in a call that never returns.

FollowerView SlimeFollower::view() const {
  MutexLock lock(mutex_);
  FollowerView view = view_;
  view.seconds_failing = ToSeconds(Failing());
  view.stale = Failing() >= options_.stale.after;
  view.seconds_since_version = ToSeconds(parts_.clock.Now() - version_since_);
  view.history = history_.All();
  return view;
}

void SlimeFollower::BeginStep() {
  MutexLock lock(mutex_);
  DWS_CHECK(!stepping_);
  stepping_ = true;
  progress_at_ = parts_.clock.Now();
}

void SlimeFollower::EndStep(const Status& status) {
  {
    MutexLock lock(mutex_);
    DWS_CHECK(stepping_);
    stepping_ = false;
    view_.trouble = status.ok() ? "" : std::string(Message(status));
    view_.unproved = unproved_;
    view_.waits_for = incomplete_.has_value() ? incomplete_->missing : "";
    watch_.Observe(status.ok(), parts_.clock.Now());
    if (status.ok() && incomplete_.has_value() && incomplete_->has_files) {
      watch_.Observe(false, incomplete_->since);
    }
  }
  ShowReadiness();
}

void SlimeFollower::LookForProgress() {
  if (parts_.liveness == nullptr) return;
  const uint64_t beats = parts_.liveness->beats() + parts_.pool.liveness().beats();
  DWS_CHECK(beats >= beats_);
  if (stepping_ && parts_.liveness->working() && beats == beats_) return;
  beats_ = beats;
  progress_at_ = parts_.clock.Now();
}

Duration SlimeFollower::Still() const {
  if (parts_.liveness == nullptr || !stepping_) return Duration::zero();
  const Duration still = parts_.clock.Now() - progress_at_;
  return still >= limits::kStepStillMax ? still : Duration::zero();
}

Duration SlimeFollower::Failing() const {
  return std::max(watch_.Without(parts_.clock.Now()), Still());
}

std::string SlimeFollower::StaleReason() const {
  if (Failing() < options_.stale.after) return "";
  return fmt::format(
      "the folder could not be followed for more than {} s: {}",
      std::chrono::ceil<std::chrono::seconds>(options_.stale.after).count(),
      Still() > Duration::zero()
          ? fmt::format("'{}' makes no progress: does the folder's mount hang?", view_.stage)
      : view_.trouble.empty() ? view_.waits_for
                              : view_.trouble);
}

void SlimeFollower::ShowReadiness() {
  MutexLock telling(telling_mutex_);
  bool ready = false;
  std::string reason;
  {
    MutexLock lock(mutex_);
    LookForProgress();
    const bool loaded = !view_.has_engine || view_.loaded.has_value();
    // It is ready even with trouble: a running engine continues with the version it has.
    ready = view_.version.has_value() && loaded;
    if (!ready) {
      reason = !view_.trouble.empty()       ? view_.trouble
               : !view_.version.has_value() ? "the local checkpoint is being opened"
                                            : "the engine has not loaded the checkpoint";
    } else if (const std::string stale = StaleReason(); !stale.empty()) {
      ready = options_.stale.keeps_ready;
      if (!ready) reason = stale;
    }
  }
  if (std::pair now(ready, std::move(reason)); told_ != now) {
    told_ = std::move(now);
    parts_.on_readiness(told_->first, told_->second);
  }
}

}  // namespace dws
