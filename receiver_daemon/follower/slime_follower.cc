#include "receiver_daemon/follower/slime_follower.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/formats/safetensors/checkpoint_index.h"
#include "common/formats/slime_delta/version_folder.h"

namespace dws {

SlimeFollower::SlimeFollower(Parts parts, Options options)
    : parts_(std::move(parts)),
      options_(std::move(options)),
      load_first_(parts_.make_control != nullptr) {
  MutexLock lock(mutex_);
  view_.has_engine = parts_.make_control != nullptr;
}

SlimeFollower::~SlimeFollower() { DWS_CHECK(!thread_.joinable()); }

void SlimeFollower::Start() {
  thread_ = std::thread([this] { Run(); });
}

void SlimeFollower::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

FollowerView SlimeFollower::view() const {
  MutexLock lock(mutex_);
  return view_;
}

void SlimeFollower::SetDrained(bool drained) {
  MutexLock lock(mutex_);
  view_.drained = drained;
  changed_.NotifyAll();
}

void SlimeFollower::RequestVerify(std::function<void(const Status&)> done) {
  MutexLock lock(mutex_);
  verifies_.push_back(std::move(done));
  changed_.NotifyAll();
}

void SlimeFollower::AwaitChange(Duration timeout) const {
  MutexLock lock(mutex_);
  seen_.WaitFor(mutex_, timeout);
}

bool SlimeFollower::BeginLooking() {
  MutexLock lock(mutex_);
  if (view_.drained || stopping_) return false;
  view_.stage = "looking";
  return true;
}

void SlimeFollower::SetStage(std::string stage) {
  MutexLock lock(mutex_);
  if (view_.stage == stage) return;
  view_.stage = std::move(stage);
  seen_.NotifyAll();
}

void SlimeFollower::ForgetLoaded() {
  MutexLock lock(mutex_);
  view_.loaded.reset();
  load_first_ = view_.has_engine;
}

void SlimeFollower::Run() {
  std::string told;
  Duration wait = options_.poll;
  while (true) {
    const Status status = Step();
    if (const std::string trouble(Message(status)); !status.ok() && trouble != told) {
      LogWarning("follow_failed", {{"reason", ToString(status)}});
      told = trouble;
    } else if (status.ok()) {
      told.clear();
    }
    wait = status.ok()
               ? options_.poll
               : std::max<Duration>(options_.poll,
                                    std::min<Duration>(wait * 2, limits::kFollowRetryDelayMax));
    ServeVerifies();
    MutexLock lock(mutex_);
    if (!stopping_ && verifies_.empty()) changed_.WaitFor(mutex_, wait);
    if (stopping_) break;
  }
  std::vector<std::function<void(const Status&)>> left;
  {
    MutexLock lock(mutex_);
    left.swap(verifies_);
  }
  for (const auto& done : left) done(UnavailableError("the receiver is stopping"));
}

Status SlimeFollower::Step() {
  const PulseWork work(parts_.pulse);
  BeginLooking();
  Status status = Open();
  if (status.ok() && load_first_) {
    ListVersions().status().IgnoreError();  // for whoever looks at how far it is behind
    status = Load();
  }
  if (status.ok()) status = Follow();
  SetStage("idle");
  ShowReadiness(status);
  return status;
}

Status SlimeFollower::Follow() {
  Status status;
  while (status.ok() && BeginLooking()) {
    const Result<bool> applied = ApplyNext();
    status = applied.status();
    if (!applied.ok() || !*applied) break;
  }
  if (local_->halfway()) {  // opened anew it is completed
    local_.reset();
    return status;
  }
  // Whatever became of later versions: what was applied is loaded.
  const Status loaded = Load();
  if (status.ok() || loaded.ok()) return status.ok() ? loaded : status;
  return MakeStatus(loaded.code(),
                    fmt::format("{}; besides: {}", Message(loaded), Message(status)));
}

Status SlimeFollower::Open() {
  if (local_ != nullptr && local_->in_place()) return OkStatus();
  if (local_ != nullptr) {
    LogWarning("checkpoint_replaced", {{"checkpoint", options_.checkpoint}});
    local_.reset();
    index_time_.reset();
    refusals_.clear();
    ForgetLoaded();
  }
  SetStage("opening");
  DWS_ASSIGN_OR_RETURN(local_,
                       slime::LocalCheckpoint::Open(parts_.files, parts_.pool, options_.checkpoint,
                                                    {.verify_all = options_.verify_all}));
  LogInfo("checkpoint_opened", {{"checkpoint", options_.checkpoint},
                                {"version", local_->version()},
                                {"tensors", local_->checkpoint().tensors().size()},
                                {"bytes", local_->checkpoint().tensor_bytes()}});
  MutexLock lock(mutex_);
  view_.version = local_->version();
  return OkStatus();
}

std::string SlimeFollower::PathOf(uint64_t version) const {
  return options_.folder + "/" + slime::VersionFolderName(version);
}

Result<std::vector<uint64_t>> SlimeFollower::ListVersions() {
  DWS_ASSIGN_OR_RETURN(std::vector<uint64_t> versions,
                       slime::ListVersions(parts_.files, options_.folder));
  MutexLock lock(mutex_);
  view_.newest = versions.empty() ? 0 : versions.back();
  return versions;
}

Status SlimeFollower::CheckSameRun(const std::vector<uint64_t>& versions) {
  const uint64_t local = local_->version();
  if (!versions.empty() && versions.back() < local) {
    return FailedPreconditionError(
        "{} has versions up to {}, and the local checkpoint is of version {}: the trainer has "
        "begun another run; put its base in the place of {}, without .weight_sync, or restart with "
        "another folder",
        options_.folder, versions.back(), local, options_.checkpoint);
  }
  const auto written = IndexTime(local);
  if (!written.has_value() || index_time_ == written) return OkStatus();  // it may be gone
  const auto index = slime::ReadVersionIndex(parts_.files, PathOf(local));
  // Read whole once more for that, a full one only with a reason.
  if (index_time_.has_value() || (index.ok() && index->delta.has_value())) {
    const Status same = UnlessRefused(local, [&] { return local_->CheckApplied(PathOf(local)); });
    if (absl::IsUnavailable(same)) return OkStatus();
    DWS_RETURN_IF_ERROR(same);
  }
  index_time_ = written;
  return OkStatus();
}

Status SlimeFollower::UnlessRefused(uint64_t version, const std::function<Status()>& work) {
  const TimePoint begin = parts_.clock.Now();
  const auto written = IndexTime(version);
  const auto known = refusals_.find(version);
  if (known != refusals_.end() && known->second.index_time == written &&
      begin < known->second.until) {
    return known->second.status;
  }
  const Status status = work();
  refusals_.erase(version);
  if (status.ok() || absl::IsUnavailable(status)) return status;
  const TimePoint end = parts_.clock.Now();
  refusals_[version] = {.index_time = written,
                        .until = end + 10 * (end - begin),
                        .status = Annotate(status, slime::VersionFolderName(version))};
  return refusals_[version].status;
}

std::optional<std::filesystem::file_time_type> SlimeFollower::IndexTime(uint64_t version) const {
  std::error_code failed;
  const auto time =
      std::filesystem::last_write_time(PathOf(version) + "/" + safetensors::kIndexFile, failed);
  if (failed) return std::nullopt;
  return time;
}

std::optional<uint64_t> SlimeFollower::NewestFull(const std::vector<uint64_t>& versions,
                                                  uint64_t after) const {
  for (auto version = versions.rbegin(); version != versions.rend() && *version > after;
       ++version) {
    const auto index = slime::ReadVersionIndex(parts_.files, PathOf(*version));
    if (index.ok() && !index->delta.has_value()) return *version;
  }
  return std::nullopt;
}

Result<bool> SlimeFollower::ApplyNext() {
  DWS_ASSIGN_OR_RETURN(const std::vector<uint64_t> versions, ListVersions());
  const uint64_t local = local_->version();
  Status refused = CheckSameRun(versions);
  const bool other_run = !refused.ok();
  if (!other_run) {
    const Result<bool> applied = ApplyFollowing(versions);
    if (applied.ok() || local_->halfway()) return applied;
    refused = applied.status();
  }
  const std::optional<uint64_t> full = NewestFull(versions, other_run ? local : local + 1);
  // The run that has written over the local version may have left later ones of the run before it.
  if (!full.has_value() || (other_run && IndexTime(*full) < IndexTime(local))) return refused;
  const Result<bool> taken = ApplyVersion(*full);
  if (!taken.ok()) return taken;
  if (!*taken) return refused;
  LogWarning("versions_skipped",
             {{"from", local + 1}, {"to_full_version", *full}, {"reason", Message(refused)}});
  return true;
}

Result<bool> SlimeFollower::ApplyFollowing(const std::vector<uint64_t>& versions) {
  const uint64_t local = local_->version();
  if (std::binary_search(versions.begin(), versions.end(), local + 1)) {
    return ApplyVersion(local + 1);
  }
  if (versions.empty() || versions.back() <= local) return false;
  return FailedPreconditionError(
      "{} has version {} and no longer version {}, which comes after the local checkpoint's: copy "
      "a full checkpoint of version {} or later to {}, or have one published",
      options_.folder, versions.back(), local + 1, local, options_.checkpoint);
}

Result<bool> SlimeFollower::ApplyVersion(uint64_t version) {
  SetStage("applying");
  const TimePoint begin = parts_.clock.Now();
  const auto written = IndexTime(version);
  Result<slime::ApplyReport> report = slime::ApplyReport();
  const Status status = UnlessRefused(version, [&] {
    report = local_->Apply(PathOf(version));
    return report.status();
  });
  if (absl::IsUnavailable(status) && !local_->halfway()) {
    // Its writer is at it, or this machine does not see all of it yet: the next look will.
    const TimePoint since = unpublished_.try_emplace(version, begin).first->second;
    if (begin - since < limits::kUnpublishedMax) return false;
    return Annotate(status, "for minutes now");
  }
  DWS_RETURN_IF_ERROR(status);
  unpublished_.clear();
  refusals_.clear();
  index_time_ = written;
  DWS_KILLPOINT("follow.after_apply");
  const double seconds = ToSeconds(parts_.clock.Now() - begin);
  LogInfo("version_applied",
          {{"version", report->version}, {"tensors", report->tensor_count}, {"seconds", seconds}});
  MutexLock lock(mutex_);
  view_.version = report->version;
  view_.applied += report->applied ? 1 : 0;
  view_.applied_tensors += report->tensor_count;
  view_.last_apply_seconds = seconds;
  return true;
}

Status SlimeFollower::Load() {
  const uint64_t version = local_->version();
  bool has_it = false;
  {
    MutexLock lock(mutex_);
    if (!view_.has_engine || stopping_) return OkStatus();
    has_it = view_.loaded == version;
    if (!view_.loaded.has_value()) load_first_ = true;  // unless a refusal ends it
  }
  if (has_it) return CheckEngine(version);
  SetStage("loading");
  if (control_ == nullptr) {
    DWS_ASSIGN_OR_RETURN(control_, parts_.make_control());
  }
  const TimePoint begin = parts_.clock.Now();
  const Status status = LoadPaused(version);
  if (!status.ok()) {
    control_.reset();  // who was restarted may be another kind of engine, or version
    return status;
  }
  load_first_ = false;
  const TimePoint end = parts_.clock.Now();
  check_engine_at_ = end + check_interval_;
  const double seconds = ToSeconds(end - begin);
  LogInfo("version_loaded", {{"version", version}, {"pause_seconds", seconds}});
  MutexLock lock(mutex_);
  view_.loaded = version;
  ++view_.loads;
  view_.last_pause_seconds = seconds;
  return OkStatus();
}

Status SlimeFollower::CheckEngine(uint64_t version) {
  const TimePoint now = parts_.clock.Now();
  if (control_ == nullptr || now < check_engine_at_) return OkStatus();
  const Status same = control_->Check(WeightVersion(version), limits::kEngineCheckDeadline);
  // Where others load it too, that is not answered by a pause every few seconds.
  check_interval_ = absl::IsFailedPrecondition(same)
                        ? std::min<Duration>(2 * check_interval_, limits::kEngineCheckIntervalMax)
                        : limits::kEngineCheckInterval;
  check_engine_at_ = now + check_interval_;
  // One that is only slow to answer still is what it was.
  if (!absl::IsUnavailable(same) && !absl::IsFailedPrecondition(same)) return OkStatus();
  control_.reset();
  ForgetLoaded();
  return Annotate(same, fmt::format("the engine had loaded version {}", version));
}

Status SlimeFollower::LoadPaused(uint64_t version) {
  // No stream, no token: versions of a folder have neither.
  const auto resume = [this](uint64_t holds) {
    return control_->Resume({.stream = {}, .version = WeightVersion(holds), .state_token = {}});
  };
  if (const Status paused = control_->Pause(options_.pause_timeout); !paused.ok()) {
    // One that may hold parts of two versions is not let run; the next look pauses it again.
    const std::optional<uint64_t> holds = view().loaded;
    if (!holds.has_value()) return paused;
    const Status resumed = resume(*holds);
    if (resumed.ok()) return paused;
    ForgetLoaded();  // nor is it known whether it runs: not ready until a load has ended
    return Annotate(resumed, fmt::format("after '{}'", Message(paused)));
  }
  DWS_KILLPOINT("follow.after_pause");
  ForgetLoaded();
  const Status loaded = control_->PostCommit(WeightVersion(version), options_.pause_timeout);
  // Who refuses has ended. Whatever else has happened, it may still be reading.
  if (absl::IsFailedPrecondition(loaded)) load_first_ = false;
  DWS_RETURN_IF_ERROR(loaded);
  DWS_KILLPOINT("follow.after_load");
  return resume(version);
}

void SlimeFollower::ServeVerifies() {
  std::vector<std::function<void(const Status&)>> taken;
  {
    MutexLock lock(mutex_);
    taken.swap(verifies_);
  }
  if (taken.empty()) return;
  const PulseWork work(parts_.pulse);
  SetStage("verifying");
  const Status status =
      local_ == nullptr
          ? FailedPreconditionError("the local checkpoint is not open: {}", view().trouble)
          : local_->Verify();
  SetStage("idle");
  for (const auto& done : taken) done(status);
}

void SlimeFollower::ShowReadiness(const Status& status) {
  bool ready = false;
  std::string reason;
  {
    MutexLock lock(mutex_);
    view_.trouble = status.ok() ? "" : std::string(Message(status));
    const bool loaded = !view_.has_engine || view_.loaded.has_value();
    // An engine that runs goes on with what it has.
    ready = view_.version.has_value() && loaded;
    if (!ready) {
      reason = !view_.trouble.empty()       ? view_.trouble
               : !view_.version.has_value() ? "the local checkpoint is being opened"
                                            : "the engine has not loaded the checkpoint";
    }
  }
  if (std::pair now(ready, std::move(reason)); told_ != now) {
    told_ = std::move(now);
    parts_.on_readiness(told_->first, told_->second);
  }
}

}  // namespace dws
