// Orders are carried out one after another, in the order in which they came, so every report to the
// group is true when it arrives. Between two orders the driver holds at most one staged version and
// one that is written and not released.
#include "receiver_daemon/worker/group_driver.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log/log.h"
#include "common/model/limits.h"

namespace dws {

Status GroupDriver::Round() {
  bool attached = engine_.Attach();
  TellEngine();  // not only once all memory has been read
  if (attached) attached = engine_.Read();
  TellDrain();
  LookAtBoundary();  // before a newer target replaces the held version
  std::optional<SyncTarget> target;
  if (!parts_.requests.draining()) target = parts_.subscription.Target();
  parts_.group.Apply([&target](GroupStates& states) {
    if (!states.leader.has_value()) return;
    states.leader->OnTarget(target.has_value() ? std::optional(target->at()) : std::nullopt);
  });
  Status status;
  if (attached) {
    const bool fits = target.has_value() && engine_.weights()->layouts().Fits(*target);
    if (fits) status = engine_.CheckNumber(*target);
    if (status.ok()) status = TellDrift();
    if (status.ok() && fits) status = Adopt(*target);
    if (status.ok()) status = Resync();
  }
  ObeyGroup();
  if (attached && status.ok()) Show();
  return status;
}

// Boundaries do not wait for the next round, unless a commit has begun in one: that commit goes on.
void GroupDriver::AfterRound(const Status& round) {
  if (round.ok()) return;  // it has paused for drift already
  const CommitGroup::Hold hold = parts_.group.hold();
  if (!committing_.has_value() || committing_ != hold.round) Settle();
}

// A version may be held for long.
void GroupDriver::TellDrain() {
  if (!parts_.requests.draining() || !work_.staged.has_value() || work_.staged->drain_told) return;
  work_.staged->drain_told = true;
  parts_.group.Apply([](GroupStates& states) { states.member.OnDrain(); });
}

void GroupDriver::LookAtBoundary() {
  const CommitGroup::Hold hold = parts_.group.hold();
  board_.SetReplaced(hold.replaced);
  board_.SetHeld(hold.state != RoundHold::kNone);
  // A boundary counts for one round: the next may be held before this is called again.
  const bool next = committing_.has_value() && committing_ != hold.round;
  if (hold.state == RoundHold::kNone || next) Settle();
  if (hold.state != RoundHold::kHeld || !parts_.boundary.Hold()) return;
  committing_ = hold.round;
  parts_.group.Apply([](GroupStates& states) { states.leader->OnBoundary(); });
}

// A decision that is still recorded binds the group.
void GroupDriver::AfterForget(const StreamId& stream) {
  parts_.group.Apply([&stream](GroupStates& states) {
    if (states.leader.has_value()) states.leader->OnForget(stream);
  });
}

void GroupDriver::Settle() {
  committing_.reset();
  parts_.boundary.Settle();
}

void GroupDriver::TellEngine() {
  std::optional<Generation> generation;
  if (engine_.weights() != nullptr) generation = engine_.weights()->generation();
  if (generation == work_.told) return;
  work_ = {.told = generation, .drifts_told = engine_.drifts()};
  board_.SetStage("idle", std::nullopt);
  if (!generation.has_value()) return parts_.group.OnEngine(std::nullopt, {}, nullptr);
  parts_.group.OnEngine(generation, engine_.weights()->Share(), engine_.weights()->layouts_ptr());
}

// The leader's next round repairs the drift. Until then the engine rank is paused, however long
// that takes.
Status GroupDriver::TellDrift() {
  if (!engine_.live().drifted || work_.drifts_told == engine_.drifts()) return OkStatus();
  if (engine_.released()) {
    engine_.PauseForDrift(UnavailableError("the next round of its commit group does that"));
    if (!engine_.paused_for_drift()) return UnavailableError("the engine does not answer a pause");
  }
  work_.paused_since.reset();
  work_.drifts_told = engine_.drifts();
  parts_.group.Apply([](GroupStates& states) {
    states.member.OnPaused();
    states.member.OnUnproved();
  });
  return OkStatus();
}

// Once for each reading of memory: later only a round of the group leads to a version.
Status GroupDriver::Adopt(const SyncTarget& target) {
  if (work_.adoption_tried_at == engine_.readings() || board_.drained() ||
      engine_.live().at.has_value()) {
    return OkStatus();
  }
  const Result<std::optional<Prepared>> prepared = parts_.runner.PrepareAdoption(target);
  Status status = prepared.status();
  if (status.ok() && prepared->has_value()) status = Commit(**prepared);
  DWS_RETURN_IF_ERROR(Annotate(status, "comparing memory with a version"));
  work_.adoption_tried_at = engine_.readings();
  if (engine_.live().proved()) {
    parts_.group.Apply([this](GroupStates& states) {
      states.member.OnProved(engine_.weights()->generation(), *engine_.live().at);
    });
  }
  return OkStatus();
}

// Reads everything; a round of the group, which it asks for, brings what differs.
Status GroupDriver::Resync() {
  const OperatorTaskPtr resync = parts_.requests.resync();
  if (resync == nullptr || board_.drained() || parts_.watch.read_for_resync()) return OkStatus();
  DWS_RETURN_IF_ERROR(parts_.watch.ReadForResync(*resync));
  resync->Update([](TaskProgress& progress) {
    progress.step = "waits for the next round of its commit group";
    progress.done_bytes = progress.total_bytes = 0;
  });
  if (engine_.live().drifted) return TellDrift();
  parts_.group.Apply([](GroupStates& states) { states.member.OnUnproved(); });
  return OkStatus();
}

void GroupDriver::ObeyGroup() {
  while (!parts_.stopping.load()) {
    const std::vector<GroupOrder> orders = parts_.group.orders().TakeAll();
    for (const GroupOrder& order : orders) {
      std::visit([this](const auto& one) { Obey(one); }, order);
    }
    if (!orders.empty()) continue;
    LookAtBoundary();  // the round before may have just ended, and staging takes long
    if (!Stage()) return;
  }
}

void GroupDriver::Obey(const StageOrder& order) {
  DWS_KILLPOINT("group.stage.after_prepare");
  work_.to_stage =
      ToStage{.order = order, .deadline = parts_.clock.Now() + limits::kGroupOfferWait};
}

void GroupDriver::Obey(const DropStaged&) {
  work_.to_stage.reset();
  work_.staged.reset();
  board_.SetStage("idle", std::nullopt);
}

bool GroupDriver::Stage() {
  if (!work_.to_stage.has_value() || !engine_.live().known()) return false;
  const StageOrder order = work_.to_stage->order;
  const VersionAt& at = order.what.target;
  std::optional<SyncTarget> target = parts_.subscription.TargetAt(at.version);
  if (target.has_value() && (target->at() != at || !engine_.weights()->layouts().Fits(*target))) {
    target.reset();
  }
  const bool draining = parts_.requests.draining();
  // The senders may offer it soon.
  if (!target.has_value() && !draining && parts_.clock.Now() < work_.to_stage->deadline) {
    return false;
  }
  work_.to_stage.reset();
  const bool resync = parts_.requests.resync() != nullptr && parts_.watch.read_for_resync();
  Result<Prepared> prepared =
      draining             ? Result<Prepared>(FailedPreconditionError("drained by an operator"))
      : target.has_value() ? Prepare(order, *target, resync)
                           : Result<Prepared>(UnavailableError(
                                 "version {} is not offered to this member: {}", at.version.value(),
                                 parts_.subscription.MissingTarget()));
  DWS_KILLPOINT("group.stage.after_staged");
  // The round was given up meanwhile: the next order replaces it.
  if (!parts_.group.orders().Wants(order)) {
    board_.SetStage("idle", std::nullopt);
    return true;
  }
  const Status status = prepared.status();
  if (status.ok()) {
    board_.SetStage("staged", at.version, prepared->staging_bytes());
  } else {
    board_.SetStage("idle", std::nullopt);
  }
  work_.trouble = status.ok() || draining ? ""
                                          : fmt::format("version {} cannot be staged: {}",
                                                        at.version.value(), Message(status));
  if (status.ok()) {
    DWS_CHECK(!work_.staged.has_value() && prepared->target.at() == at);
    work_.staged = Staged{.round = order.what.round,
                          .prepared = *std::move(prepared),
                          .drifts = engine_.drifts(),
                          .resync = resync};
  }
  parts_.group.OnStaged(order, VersionIn(engine_.live().at, at.stream), status);
  return true;
}

Result<Prepared> GroupDriver::Prepare(const StageOrder& order, const SyncTarget& target,
                                      bool resync) {
  // This also holds if drift keeps the group from counting on the version: versions never go back
  // inside a stream.
  const std::optional<WeightVersion> has = VersionIn(engine_.live().at, target.stream);
  if (has.has_value() && *has > target.version) {
    return FailedPreconditionError("version {} is committed, {} is below it", has->value(),
                                   target.version.value());
  }
  Way way = Way::kDelta;
  if (resync) way = parts_.requests.resync()->full() ? Way::kFull : Way::kDescription;
  // Captured by value, because spools keep it.
  const auto wanted = [this, order] { return parts_.group.orders().Wants(order); };
  DWS_ASSIGN_OR_RETURN(Prepared prepared, parts_.runner.Prepare(target, way, wanted));
  if (!engine_.IsCurrent()) {
    return UnavailableError(
        "the engine attached again, or disconnected, after this version was staged for it");
  }
  return prepared;
}

// From running, for the group.
void GroupDriver::NotePause(TimePoint since) {
  if (!engine_.released()) return;
  engine_.OnPaused();
  work_.paused_since = since;
}

void GroupDriver::Obey(const PauseEngine& order) {
  Status paused = UnavailableError("the leader has no engine");
  if (engine_.weights() != nullptr) {
    const TimePoint asked = parts_.clock.Now();
    paused = engine_.Pause();
    const TimePoint stopped = parts_.clock.Now() - engine_.Control().StoppedFor();
    NotePause(paused.ok() ? std::max<TimePoint>(asked, stopped) : asked);
  }
  DWS_KILLPOINT("group.pause.after_pause");
  parts_.group.Apply([&](GroupStates& states) {
    states.member.OnPaused();
    states.leader->OnPaused(order.round, paused);
  });
}

void GroupDriver::Obey(const WriteStaged& order) {
  DWS_KILLPOINT("group.commit.before_write");
  const auto staged = std::exchange(work_.staged, std::nullopt);
  Status status;
  bool untouched = true;
  if (!staged.has_value() || staged->round != order.round || engine_.weights() == nullptr) {
    status = UnavailableError("the engine that this version was staged for has disconnected");
  } else if (staged->drifts != engine_.drifts()) {
    status = UnavailableError("live memory has drifted since this version was staged");
  } else {
    board_.SetStage("committing", staged->prepared.target.version,
                    staged->prepared.staging_bytes());
    status = Commit(staged->prepared);
    untouched = engine_.live().known();
  }
  board_.SetStage("idle", std::nullopt);
  if (!status.ok()) LogWarning("group_write_failed", {{"reason", ToString(status)}});
  DWS_KILLPOINT("group.commit.after_write");
  parts_.group.Apply(
      [&](GroupStates& states) { states.member.OnWritten(order.round, status, untouched); });
  DWS_KILLPOINT("group.commit.after_answer");
  const OperatorTaskPtr resync = parts_.requests.resync();
  if (resync == nullptr || !parts_.watch.read_for_resync() || !status.ok()) return;
  if (!staged->resync) {  // asked for while that was staged
    return parts_.group.Apply([](GroupStates& states) { states.member.OnUnproved(); });
  }
  resync->Update([&staged](TaskProgress& progress) {
    progress.version = staged->prepared.target.version;
    progress.step = fmt::format("memory has version {}, its commit group releases it",
                                progress.version->value());
  });
  parts_.watch.EndResync();
}

Status GroupDriver::Commit(const Prepared& prepared) {
  const TimePoint asked = parts_.clock.Now();
  Result<WrittenVersion> written =
      parts_.runner.Commit(prepared, CommitPipeline::Release::kByLeader);
  NotePause(written.ok() ? parts_.clock.Now() - written->pause : asked);
  engine_.Show();
  if (written.ok()) work_.written = *std::move(written);
  return written.status();
}

void GroupDriver::Obey(const ReleaseEngine& order) {
  DWS_KILLPOINT("group.release.before_resume");
  // Otherwise the group knows the reason, or learns it soon.
  if (engine_.weights() == nullptr || !engine_.live().proved() ||
      engine_.live().at != order.version) {
    return;
  }
  static_cast<void>(engine_.Control().Resume(VersionOf(engine_.live())));  // always OK
  DWS_KILLPOINT("group.release.after_resume");
  const auto since = std::exchange(work_.paused_since, std::nullopt);
  const Duration pause = since.has_value() ? parts_.clock.Now() - *since : Duration::zero();
  engine_.OnResumed();
  auto written = std::exchange(work_.written, std::nullopt);
  if (!written.has_value() || written->prepared.target.at() != order.version) return;
  parts_.runner.Report(*std::move(written), pause, !since.has_value());
}

void GroupDriver::Obey(const EndEngine&) {
  if (parts_.requests.resync() != nullptr) parts_.requests.EndResync(parts_.registry.ended());
}

void GroupDriver::Obey(const RecordDecided& order) {
  const Status recorded = parts_.ledger.Append(
      GroupDecided{.stream = order.version.stream, .version = order.version.version});
  DWS_KILLPOINT("group.decide.after_record");
  if (!recorded.ok()) {
    LogError("ledger_append_failed", {{"record", "decided"}, {"reason", Message(recorded)}});
  }
  parts_.group.Apply([&](GroupStates& states) { states.leader->OnDecided(order, recorded); });
}

void GroupDriver::Obey(const RecordSettled& order) {
  const Status recorded = parts_.ledger.Append(
      GroupSettled{.stream = order.version.stream, .version = order.version.version});
  DWS_KILLPOINT("group.settle.after_record");
  if (!recorded.ok()) {
    LogError("ledger_append_failed", {{"record", "settled"}, {"reason", Message(recorded)}});
  }
}

bool GroupDriver::HasNothingToReach() const {
  ReceiverView view{.drained = parts_.requests.draining(),
                    .resync = parts_.requests.resync() != nullptr,
                    .live = engine_.live().at,
                    .drifted = engine_.live().drifted,
                    .target = std::nullopt};
  if (const auto target = parts_.subscription.Target()) view.target = target->at();
  const ReceiverStep step = NextStep(view);
  return step == ReceiverStep::kHold || step == ReceiverStep::kCurrent;
}

void GroupDriver::Show() {
  const std::string waits_for = parts_.group.view().waits_for;
  if (engine_.live().proved() && engine_.released()) {
    if (HasNothingToReach()) work_.trouble.clear();
    if (work_.trouble.empty()) {
      board_.SetTrouble(waits_for);
    } else {
      board_.SetFailure(work_.trouble);
    }
    return board_.SetReadiness(true, "");
  }
  // In the middle of a commit; it is looked at again before long.
  const auto& since = work_.paused_since;
  if (since.has_value() && parts_.clock.Now() - *since < limits::kKeepaliveInterval) return;
  if (engine_.live().drifted) {
    return board_.SetReadiness(false, "the engine is paused: " + engine_.DriftReason());
  }
  std::string reason = waits_for;
  if (reason.empty()) reason = work_.trouble;
  if (reason.empty() && !parts_.subscription.Target().has_value()) {
    reason = parts_.subscription.MissingTarget();
  }
  if (reason.empty() && parts_.group.place().leads()) {
    reason = "its commit group brings all members to one version";
  } else if (reason.empty()) {
    reason = fmt::format(
        "its commit group's leader releases it; the status of the receiver at {} says what it is "
        "waiting for",
        parts_.group.place().leader_address);
  }
  board_.SetReadiness(false, "the engine is paused: " + reason);
}

}  // namespace dws
