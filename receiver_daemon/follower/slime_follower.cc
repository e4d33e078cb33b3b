#include "receiver_daemon/follower/slime_follower.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/formats/slime_delta/version_folder.h"

namespace dws {

SlimeFollower::SlimeFollower(Parts parts, Options options)
    : parts_(std::move(parts)), options_(std::move(options)) {
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

void SlimeFollower::SetStage(std::string stage) {
  MutexLock lock(mutex_);
  view_.stage = std::move(stage);
  seen_.NotifyAll();
}

void SlimeFollower::Run() {
  std::string told;
  while (true) {
    const Status status = Step();
    if (const std::string trouble(Message(status)); !status.ok() && trouble != told) {
      LogWarning("follow_failed", {{"reason", ToString(status)}});
      told = trouble;
    } else if (status.ok()) {
      told.clear();
    }
    ServeVerifies();
    MutexLock lock(mutex_);
    if (!stopping_ && verifies_.empty()) changed_.WaitFor(mutex_, options_.poll);
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
  Status status = Open();
  while (status.ok()) {
    bool held = false;
    {
      MutexLock lock(mutex_);
      held = view_.drained || stopping_;
    }
    if (held) break;
    const Result<bool> applied = ApplyNext();
    status = applied.status();
    if (!applied.ok() || !*applied) break;
  }
  // Whatever became of later versions: what was applied is loaded.
  if (local_ != nullptr && parts_.make_control != nullptr) {
    const Status loaded = Load();
    if (status.ok()) status = loaded;
  }
  ShowReadiness(status);
  return status;
}

Status SlimeFollower::Open() {
  if (local_ != nullptr) return OkStatus();
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
  view_.stage = "idle";
  return OkStatus();
}

// The version after the local one; where that is gone, the newest full checkpoint.
Result<std::optional<uint64_t>> SlimeFollower::NextVersion() {
  DWS_ASSIGN_OR_RETURN(const std::vector<uint64_t> versions,
                       slime::ListVersions(parts_.files, options_.folder));
  const uint64_t local = local_->version();
  {
    MutexLock lock(mutex_);
    view_.newest = versions.empty() ? 0 : versions.back();
  }
  if (std::binary_search(versions.begin(), versions.end(), local + 1)) return {{local + 1}};
  for (auto version = versions.rbegin(); version != versions.rend() && *version > local;
       ++version) {
    const Result<slime::VersionIndex> index = slime::ReadVersionIndex(
        parts_.files, options_.folder + "/" + slime::VersionFolderName(*version));
    if (index.ok() && !index->delta.has_value()) return {{*version}};
  }
  if (!versions.empty() && versions.back() > local + 1) {
    return FailedPreconditionError(
        "{} has version {} and no longer version {}, which comes after the local checkpoint's: "
        "copy a full checkpoint of version {} or later to {}, or have one published",
        options_.folder, versions.back(), local + 1, local, options_.checkpoint);
  }
  return std::optional<uint64_t>();
}

Result<bool> SlimeFollower::ApplyNext() {
  DWS_ASSIGN_OR_RETURN(const std::optional<uint64_t> next, NextVersion());
  if (!next.has_value()) return false;
  SetStage("applying");
  const TimePoint begin = parts_.clock.Now();
  const Result<slime::ApplyReport> report =
      local_->Apply(options_.folder + "/" + slime::VersionFolderName(*next));
  SetStage("idle");
  // Its writer is at it: the next look will see it.
  if (absl::IsUnavailable(report.status())) return false;
  if (!report.ok()) {
    // What failed in the middle only a new start from what was written down can complete.
    local_.reset();
    return Annotate(report.status(), slime::VersionFolderName(*next));
  }
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
  {
    MutexLock lock(mutex_);
    if (view_.loaded == version) return OkStatus();
  }
  if (control_ == nullptr) {
    DWS_ASSIGN_OR_RETURN(control_, parts_.make_control());
  }
  SetStage("loading");
  const TimePoint begin = parts_.clock.Now();
  const Status status = LoadPaused(version);
  SetStage("idle");
  if (!status.ok()) {
    control_.reset();  // who was restarted may be another kind of engine, or version
    return status;
  }
  const double seconds = ToSeconds(parts_.clock.Now() - begin);
  LogInfo("version_loaded", {{"version", version}, {"pause_seconds", seconds}});
  MutexLock lock(mutex_);
  view_.loaded = version;
  ++view_.loads;
  view_.last_pause_seconds = seconds;
  return OkStatus();
}

Status SlimeFollower::LoadPaused(uint64_t version) {
  // No stream, no token: versions of a folder have neither.
  const auto resume = [this](uint64_t holds) {
    return control_->Resume({.stream = {}, .version = WeightVersion(holds), .state_token = {}});
  };
  // What the engine holds is not known, or not whether it runs: not ready until a load has ended.
  const auto forget = [this] {
    MutexLock lock(mutex_);
    view_.loaded.reset();
  };
  if (const Status paused = control_->Pause(options_.pause_timeout); !paused.ok()) {
    // Its weights are what they were.
    const Status resumed = resume(view().loaded.value_or(version));
    if (resumed.ok()) return paused;
    forget();
    return Annotate(resumed, fmt::format("after '{}'", Message(paused)));
  }
  DWS_KILLPOINT("follow.after_pause");
  forget();
  DWS_RETURN_IF_ERROR(control_->PostCommit(WeightVersion(version), options_.pause_timeout));
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
