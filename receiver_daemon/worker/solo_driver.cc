// Each round is one straight line: NextStep decides what to do from what is known about memory,
// senders and operators. The only thing kept between two rounds is a staged version, if the engine
// has not asked for it yet or the commit policy holds it back.
#include "receiver_daemon/worker/solo_driver.h"

#include <algorithm>
#include <utility>

#include "common/base/log/log.h"

namespace dws {
namespace {

// After a delta that was too large to be staged so many versions are taken when they are published.
constexpr int kEarlySkips = 16;

}  // namespace

Status SoloDriver::Round() {
  if (!parts_.engine.Attach() || !parts_.engine.Read()) return OkStatus();
  return FollowTarget();
}

// Drift that a round has not repaired pauses the engine, whatever the reason. The engine may run
// for that one round, so that the repair is fetched before the pause.
void SoloDriver::AfterRound(const Status& round) {
  if (parts_.engine.live().drifted && !parts_.engine.paused_for_drift()) {
    parts_.engine.PauseForDrift(round);
  }
  if (!round.ok()) parts_.boundary.Settle();  // boundaries do not wait for the next one
}

Status SoloDriver::FollowTarget() {
  LiveEngine& engine = parts_.engine;
  std::optional<SyncTarget> target;
  if (!parts_.board.drained()) target = parts_.subscription.Target();
  if (target.has_value() && !engine.weights()->layouts().Fits(*target)) {
    // The stream has changed since the engine was looked at, or its ranks do not fit each other, or
    // they are cut differently.
    DWS_RETURN_IF_ERROR(parts_.subscription.Layouts().status());
    DropStaged();
    parts_.board.SetTrouble("waiting for all senders to cut tensors the same way");
    return OkStatus();
  }
  if (target.has_value()) DWS_RETURN_IF_ERROR(engine.CheckNumber(*target));
  const OperatorTaskPtr resync = parts_.requests.resync();
  ReceiverView view{.drained = parts_.board.drained(),
                    .resync = resync != nullptr,
                    .live = engine.live().at,
                    .drifted = engine.live().drifted,
                    .target = std::nullopt};
  if (target.has_value()) view.target = target->at();
  switch (NextStep(view)) {
    case ReceiverStep::kHold:
      DropStaged();
      parts_.board.SetTrouble("");
      parts_.board.SetReadiness(false, engine.live().proved()  ? ""
                                       : engine.live().drifted ? engine.DriftReason()
                                                               : engine.Unproved());
      return OkStatus();
    case ReceiverStep::kResync:
      return Resync(*resync, target);
    case ReceiverStep::kCurrent:
      DropStaged();
      parts_.board.SetTrouble("");
      parts_.board.SetReadiness(true, "");
      StageEarly();
      return OkStatus();
    case ReceiverStep::kAwait:
      return Await();
    case ReceiverStep::kAdopt:
      parts_.board.SetReadiness(false, fmt::format("{}: version {} is being fetched",
                                                   engine.Unproved(), target->version.value()));
      DWS_RETURN_IF_ERROR(Adopt(*target));
      return Advance(*target, Way::kDelta);
    case ReceiverStep::kAdvance:
      return Advance(*target, Way::kDelta);
  }
  return OkStatus();
}

Status SoloDriver::Await() {
  const std::string missing = parts_.subscription.MissingTarget();
  if (parts_.engine.live().drifted) return UnavailableError("{}", missing);
  parts_.board.SetReadiness(false, parts_.engine.Unproved() + ": " + missing);
  return OkStatus();
}

Status SoloDriver::Resync(OperatorTask& task, const std::optional<SyncTarget>& target) {
  DWS_RETURN_IF_ERROR(parts_.watch.ReadForResync(task));
  Status status = OkStatus();
  if (target.has_value()) {
    task.Update([&](TaskProgress& progress) {
      progress.step = fmt::format("brings the engine to version {} by {}", target->version.value(),
                                  task.full() ? "full tensors" : "description and full tensors");
      progress.done_bytes = progress.total_bytes = 0;
    });
    status = Advance(*target, task.full() ? Way::kFull : Way::kDescription);
  } else {
    status = UnavailableError("{}", parts_.subscription.MissingTarget());
  }
  if (status.ok() && staged_.has_value()) {  // the commit policy holds no resync back
    task.Update([](TaskProgress& progress) {
      progress.step = "waits for the engine, which asks when a version may be committed";
    });
    return OkStatus();
  }
  const LiveEngine& engine = parts_.engine;
  task.Update([&](TaskProgress& progress) {
    if (status.ok()) {
      progress.version = engine.live().at->version;
      progress.done_bytes = progress.total_bytes = Verification(engine.weights()).total_bytes();
    }
    progress.step =
        status.ok() ? fmt::format("the engine has version {}", engine.live().at->version.value())
                    : "tries again: " + std::string(Message(status));
  });
  if (!status.ok()) return status;
  parts_.watch.EndResync();
  return OkStatus();
}

Status SoloDriver::Adopt(const SyncTarget& target) {
  DWS_ASSIGN_OR_RETURN(const std::optional<Prepared> prepared,
                       parts_.runner.PrepareAdoption(target));
  return prepared.has_value() ? Commit(*prepared) : OkStatus();
}

Status SoloDriver::Advance(const SyncTarget& target, Way way) {
  LiveEngine& engine = parts_.engine;
  Status status = CommitOlder(target, way);
  if (status.ok()) status = Stage(target, way);
  if (status.ok() && !MayCommit(target, way)) {
    parts_.board.SetStage("staged", target.version, staged_->prepared.staging_bytes());
    parts_.board.SetTrouble("");
    if (engine.live().proved()) parts_.board.SetReadiness(true, "");
    return OkStatus();
  }
  if (status.ok()) status = CommitStaged();
  parts_.board.SetStage("idle", std::nullopt);
  parts_.board.SetHeld(false);
  parts_.boundary.Settle();
  engine.Show();
  if (status.ok()) {
    parts_.board.SetTrouble("");
  } else {
    parts_.board.SetFailure(
        fmt::format("version {} cannot be reached: {}", target.version.value(), Message(status)));
  }
  if (engine.live().proved()) {
    parts_.board.SetReadiness(true, "");
  } else if (!engine.live().drifted) {
    parts_.board.SetReadiness(false, fmt::format("{}: version {}: {}", engine.Unproved(),
                                                 target.version.value(), Message(status)));
  }
  return status;
}

Status SoloDriver::CommitOlder(const SyncTarget& target, Way way) {
  if (!policy_.holds() || !StagedFits(way) || parts_.engine.Asks()) return OkStatus();
  const VersionAt staged = staged_->prepared.target.at();
  const bool older = staged.stream == target.stream && staged.version < target.version;
  return older && MayCommit(target, way) ? CommitStaged() : OkStatus();
}

bool SoloDriver::MayCommit(const SyncTarget& newest, Way way) {
  const LiveEngine& engine = parts_.engine;
  if (engine.Asks()) return engine.MayCommit(newest.at());  // these are its boundaries
  const bool now = MayCommitNow(policy_, {.live = engine.live().at,
                                          .proved = engine.live().proved(),
                                          .resync = way != Way::kDelta,
                                          .newest = newest.at()});
  if (now) return true;
  parts_.board.SetHeld(true);
  return parts_.boundary.Hold();
}

Status SoloDriver::CommitStaged() {
  const Staged staged = *std::exchange(staged_, std::nullopt);
  parts_.board.SetStage("committing", staged.prepared.target.version,
                        staged.prepared.staging_bytes());
  const Status status = Commit(staged.prepared);
  parts_.board.SetHeld(false);
  parts_.boundary.Settle();
  return status;
}

bool SoloDriver::StagedFits(Way way) const {
  const LiveEngine& engine = parts_.engine;
  return staged_.has_value() && staged_->way == way && staged_->base == engine.live().at &&
         staged_->drifts == engine.drifts();
}

bool SoloDriver::IsStaged(const SyncTarget& target, Way way) const {
  if (!StagedFits(way) || staged_->prepared.target.at() != target.at()) return false;
  // A number that was published again names other weights.
  DWS_CHECK(target.ranks.size() == staged_->prepared.ranks.size());
  for (size_t r = 0; r < target.ranks.size(); ++r) {
    const std::optional<Digest>& announced = target.ranks[r].state_token;
    if (announced.has_value() && *announced != staged_->prepared.ranks[r].state_token) return false;
  }
  return true;
}

void SoloDriver::DropStaged() {
  const bool had = staged_.has_value();
  DropPrepared();
  if (had) parts_.board.SetStage("idle", std::nullopt);
}

void SoloDriver::DropPrepared() {
  staged_.reset();
  parts_.board.SetHeld(false);
  parts_.boundary.Settle();
}

Status SoloDriver::Stage(const SyncTarget& target, Way way) {
  LiveEngine& engine = parts_.engine;
  if (IsStaged(target, way)) return OkStatus();
  // Released before the newer one is fetched, for both together may be too large.
  if (StagedFits(way)) parts_.board.CountReplaced();
  staged_.reset();
  const std::optional<VersionAt> base = engine.live().at;
  const uint64_t drifts = engine.drifts();
  // A version that is fetched for an engine that has gone is dropped at once.
  const auto wanted = [&engine] { return engine.IsCurrent(); };
  DWS_ASSIGN_OR_RETURN(Prepared prepared, parts_.runner.Prepare(target, way, wanted));
  staged_ = Staged{.prepared = std::move(prepared), .way = way, .base = base, .drifts = drifts};
  return OkStatus();
}

void SoloDriver::StageEarly() {
  const LiveEngine& engine = parts_.engine;
  const std::optional<SyncTarget> target = parts_.subscription.Target(Offered::kInTheMaking);
  // What drifted, or cannot be followed now, is for a published version.
  if (!target.has_value() || !engine.live().proved() || early_ == target->at()) return;
  if (target->stream != engine.live().at->stream || target->version <= engine.live().at->version) {
    return;
  }
  if (!parts_.runner.MayPrepareEarly(*target)) return;
  if (!engine.weights()->layouts().Fits(*target)) return;
  early_ = target->at();
  const bool delta = std::any_of(target->ranks.begin(), target->ranks.end(),
                                 [](const auto& rank) { return rank.base.has_value(); });
  if (delta && early_skips_ > 0) {
    --early_skips_;
    return;
  }
  const uint64_t drifts = engine.drifts();
  // The trainer decides how long this takes, so nobody may have to wait for it.
  const auto wanted = [this, &engine] {
    return engine.IsCurrent() && !parts_.requests.has_orders();
  };
  Result<Prepared> prepared = parts_.runner.Prepare(*target, Way::kDelta, wanted);
  parts_.board.SetStage("idle", std::nullopt);
  parts_.board.CountEarly(prepared.ok());
  if (!prepared.ok()) {
    if (delta && absl::IsResourceExhausted(prepared.status())) early_skips_ = kEarlySkips;
    LogInfo("early_version_dropped",
            {{"version", target->version.value()}, {"reason", Message(prepared.status())}});
    return;
  }
  staged_ = Staged{.prepared = *std::move(prepared),
                   .way = Way::kDelta,
                   .base = engine.live().at,
                   .drifts = drifts};
}

Status SoloDriver::Commit(const Prepared& prepared) {
  Result<WrittenVersion> written = parts_.runner.Commit(prepared, CommitPipeline::Release::kAtOnce);
  if (!written.ok()) {
    if (!parts_.engine.live().known()) parts_.engine.OnPaused();  // in the middle of writing
    return written.status();
  }
  // If drift had paused the engine, this commit did not cause the whole pause.
  const Duration pause = parts_.engine.paused_for_drift() ? Duration::zero() : written->pause;
  parts_.engine.OnResumed();
  const bool first = written->first;
  parts_.runner.Report(*std::move(written), pause, first);
  return OkStatus();
}

}  // namespace dws
