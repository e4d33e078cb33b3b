// Each round is one straight line: what to do next is NextStep's to say, from what is known of
// memory, senders and operators; nothing is remembered between two rounds.
#include "receiver_daemon/worker/solo_driver.h"

#include <utility>

namespace dws {

Status SoloDriver::Round() {
  if (!parts_.engine.Attach() || !parts_.engine.Read()) return OkStatus();
  return FollowTarget();
}

// Drift that a round has not repaired pauses the engine, whatever the reason: the one round is what
// it may run on for, so that the repair can be fetched before the pause.
void SoloDriver::AfterRound(const Status& round) {
  if (parts_.engine.live().drifted && !parts_.engine.paused_for_drift()) {
    parts_.engine.PauseForDrift(round);
  }
}

Status SoloDriver::FollowTarget() {
  LiveEngine& engine = parts_.engine;
  std::optional<SyncTarget> target;
  if (!parts_.board.drained()) target = parts_.subscription.Target();
  if (target.has_value() && !engine.weights()->layouts().Fits(*target)) {
    // The stream has changed since the engine was looked at, or its ranks do not fit each other.
    return parts_.subscription.Layouts().status();
  }
  if (target.has_value()) DWS_RETURN_IF_ERROR(engine.CheckNumber(*target));
  const OperatorTaskPtr resync = parts_.desk.resync();
  ReceiverView view{.drained = parts_.board.drained(),
                    .resync = resync != nullptr,
                    .live = engine.live().at,
                    .drifted = engine.live().drifted,
                    .target = std::nullopt};
  if (target.has_value()) view.target = target->at();
  switch (NextStep(view)) {
    case ReceiverStep::kHold:
      parts_.board.SetTrouble("");
      parts_.board.SetReadiness(false, engine.live().proved()  ? ""
                                       : engine.live().drifted ? engine.DriftReason()
                                                               : "the engine is paused");
      return OkStatus();
    case ReceiverStep::kResync:
      return Resync(*resync, target);
    case ReceiverStep::kCurrent:
      parts_.board.SetTrouble("");
      parts_.board.SetReadiness(true, "");
      return OkStatus();
    case ReceiverStep::kAwait:
      return Await();
    case ReceiverStep::kAdopt:
      parts_.board.SetReadiness(false, fmt::format("the engine is paused: version {} is being "
                                                   "fetched",
                                                   target->version.value()));
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
  parts_.board.SetReadiness(false, "the engine is paused: " + missing);
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
  if (status.ok() && staged_.has_value()) {
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
  const TimePoint begin = parts_.clock.Now();
  DWS_ASSIGN_OR_RETURN(const std::optional<Prepared> prepared,
                       parts_.runner.PrepareAdoption(target));
  return prepared.has_value() ? Commit(*prepared, begin) : OkStatus();
}

Status SoloDriver::Advance(const SyncTarget& target, Way way) {
  LiveEngine& engine = parts_.engine;
  Status status = Stage(target, way);
  if (status.ok() && !engine.MayCommit()) {
    parts_.board.SetStage("staged", target.version);
    parts_.board.SetTrouble("");
    return OkStatus();  // its request wakes the worker
  }
  if (status.ok()) {
    const Staged staged = *std::exchange(staged_, std::nullopt);
    parts_.board.SetStage("committing", target.version);
    status = Commit(staged.prepared, staged.begin);
  }
  parts_.board.SetStage("idle", std::nullopt);
  engine.Show();
  parts_.board.SetTrouble(status.ok() ? ""
                                      : fmt::format("version {} cannot be reached: {}",
                                                    target.version.value(), Message(status)));
  if (engine.live().proved()) {
    parts_.board.SetReadiness(true, "");
  } else if (!engine.live().drifted) {
    parts_.board.SetReadiness(false, fmt::format("the engine is paused: version {}: {}",
                                                 target.version.value(), Message(status)));
  }
  return status;
}

Status SoloDriver::Stage(const SyncTarget& target, Way way) {
  LiveEngine& engine = parts_.engine;
  if (staged_.has_value() && staged_->prepared.target.at() == target.at() && staged_->way == way &&
      staged_->base == engine.live().at && staged_->drifts == engine.drifts()) {
    return OkStatus();
  }
  staged_.reset();
  const TimePoint begin = parts_.clock.Now();
  const std::optional<VersionAt> base = engine.live().at;
  const uint64_t drifts = engine.drifts();
  // What is fetched for an engine that has gone is dropped at once.
  const auto wanted = [&engine] { return engine.IsCurrent(); };
  DWS_ASSIGN_OR_RETURN(Prepared prepared, parts_.runner.Prepare(target, way, wanted));
  parts_.board.SetStaging(prepared.staging_bytes());
  staged_ = Staged{
      .prepared = std::move(prepared), .way = way, .begin = begin, .base = base, .drifts = drifts};
  return OkStatus();
}

Status SoloDriver::Commit(const Prepared& prepared, TimePoint begin) {
  DWS_ASSIGN_OR_RETURN(WrittenVersion written,
                       parts_.runner.Commit(prepared, begin, CommitPipeline::Release::kAtOnce));
  // What drift had paused before did not wait for this commit alone.
  const Duration pause = parts_.engine.paused_for_drift() ? Duration::zero() : written.pause;
  parts_.engine.OnResumed();
  parts_.engine.Show();
  const bool first = written.first;
  parts_.runner.Report(std::move(written), pause, first);
  return OkStatus();
}

}  // namespace dws
