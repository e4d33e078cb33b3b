// The worker as a member of a commit group (protocol.md §6): carries out what CommitGroup orders,
// and tells it what becomes of that and of the engine. On its own it commits nothing and releases
// nothing; what it does unasked is prove which version memory has, and pause for drift.
#include <utility>
#include <variant>

#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/model/limits.h"
#include "receiver_daemon/worker/worker.h"

namespace dws {
Status Worker::GroupRound() {
  DWS_ASSIGN_OR_RETURN(const bool attached, RefreshEngine());
  TellEngine();
  std::optional<SyncTarget> target;
  if (!parts_.desk.draining()) target = parts_.subscription.Target();
  parts_.group->OnTarget(target.has_value() ? std::optional(target->at()) : std::nullopt);
  Status status;
  if (attached) {
    if (target.has_value() && weights_->layouts().Fits(*target)) status = CheckNumber(*target);
    if (status.ok()) status = TellDrift();
    if (status.ok()) status = AdoptForGroup(target);
    if (status.ok()) status = ResyncForGroup();
  }
  ObeyGroup();
  if (attached && status.ok()) ShowGroup();
  return status;
}

void Worker::TellEngine() {
  std::optional<Generation> generation;
  if (weights_ != nullptr) generation = weights_->generation();
  if (generation == group_work_.told) return;
  group_work_ = {.told = generation, .drifts_told = drifts_};
  SetStage("idle", std::nullopt);
  if (weights_ == nullptr) return parts_.group->OnEngine(std::nullopt, {}, nullptr);
  parts_.group->OnEngine(generation, weights_->Share(), weights_->layouts_ptr());
}

// The leader's next round repairs it. Until then the engine rank is paused, however long that
// takes.
Status Worker::TellDrift() {
  if (!live_.drifted || group_work_.drifts_told == drifts_) return OkStatus();
  if (group_work_.released) {
    PauseForDrift(UnavailableError("the next round of its commit group does that"));
    if (!drift_paused_) return UnavailableError("the engine does not answer a pause");
  }
  group_work_.released = false;
  group_work_.paused_since.reset();
  group_work_.drifts_told = drifts_;
  parts_.group->OnDrift();
  return OkStatus();
}

Status Worker::AdoptForGroup(const std::optional<SyncTarget>& target) {
  if (group_work_.adoption_tried || drained_ || live_.at.has_value() || !target.has_value() ||
      !weights_->layouts().Fits(*target)) {
    return OkStatus();
  }
  DWS_RETURN_IF_ERROR(Annotate(AdoptCommitted(*target), "comparing memory with a version"));
  group_work_.adoption_tried = true;
  if (live_.proved()) parts_.group->OnProved(weights_->generation(), *live_.at);
  return OkStatus();
}

// Reads everything; a round of the group, which it asks for, brings what differs.
Status Worker::ResyncForGroup() {
  const OperatorTaskPtr resync = parts_.desk.resync();
  if (resync == nullptr || drained_ || resync_read_ == weights_) return OkStatus();
  SetStage("verifying", std::nullopt);
  const Status read = ReadAll(*resync);
  SetStage("idle", std::nullopt);
  DWS_RETURN_IF_ERROR(read);
  resync_read_ = weights_;
  PublishLive();
  resync->Update([](TaskProgress& progress) {
    progress.step = "waits for the next round of its commit group";
    progress.done_bytes = progress.total_bytes = 0;
  });
  if (live_.drifted) return TellDrift();
  parts_.group->OnResync();
  return OkStatus();
}

void Worker::ObeyGroup() {
  while (!stopping_.load()) {
    const std::vector<GroupOrder> orders = parts_.group->TakeOrders();
    for (const GroupOrder& order : orders) {
      std::visit([this](const auto& one) { Obey(one); }, order);
    }
    if (orders.empty() && !StageForGroup()) return;
  }
}

void Worker::Obey(const StageOrder& order) {
  DWS_KILLPOINT("group.stage.after_prepare");
  group_work_.to_stage =
      GroupWork::ToStage{.order = order, .deadline = parts_.clock.Now() + limits::kGroupOfferWait};
}

void Worker::Obey(const DropStaged&) {
  group_work_.to_stage.reset();
  group_work_.staged.reset();
  SetStage("idle", std::nullopt);
}

bool Worker::StageForGroup() {
  if (!group_work_.to_stage.has_value() || !live_.known()) return false;
  const StageOrder order = group_work_.to_stage->order;
  const VersionAt& at = order.what.target;
  std::optional<SyncTarget> target = parts_.subscription.TargetAt(at.version);
  if (target.has_value() && (target->at() != at || !weights_->layouts().Fits(*target))) {
    target.reset();
  }
  const bool draining = parts_.desk.draining();
  // It may be about to hear of it.
  if (!target.has_value() && !draining && parts_.clock.Now() < group_work_.to_stage->deadline) {
    return false;
  }
  group_work_.to_stage.reset();
  const TimePoint begin = parts_.clock.Now();
  const bool resync = parts_.desk.resync() != nullptr && resync_read_ == weights_;
  Result<Prepared> prepared =
      draining             ? Result<Prepared>(FailedPreconditionError("drained by an operator"))
      : target.has_value() ? PrepareForGroup(order, *target, resync)
                           : Result<Prepared>(UnavailableError(
                                 "version {} is not offered to this member: {}", at.version.value(),
                                 parts_.subscription.MissingTarget()));
  DWS_KILLPOINT("group.stage.after_staged");
  // Given up meanwhile: what was ordered next says what to do.
  if (!parts_.group->Wants(order)) {
    SetStage("idle", std::nullopt);
    return true;
  }
  const Status status = prepared.status();
  SetStage(status.ok() ? "staged" : "idle", status.ok() ? std::optional(at.version) : std::nullopt);
  group_work_.trouble = status.ok() ? ""
                                    : fmt::format("version {} cannot be staged: {}",
                                                  at.version.value(), Message(status));
  if (status.ok()) {
    SetStaging(prepared->staging_bytes());
    group_work_.staged = GroupWork::Staged{.round = order.what.round,
                                           .prepared = *std::move(prepared),
                                           .begin = begin,
                                           .drifts = drifts_,
                                           .resync = resync};
  }
  parts_.group->OnStaged(order, VersionIn(live_.at, at.stream), status);
  return true;
}

Result<Prepared> Worker::PrepareForGroup(const StageOrder& order, const SyncTarget& target,
                                         bool resync) {
  // Also where drift keeps the group from counting on it: nothing goes back inside a stream.
  const std::optional<WeightVersion> has = VersionIn(live_.at, target.stream);
  if (has.has_value() && *has > target.version) {
    return FailedPreconditionError("version {} is committed, {} is below it", has->value(),
                                   target.version.value());
  }
  Way way = Way::kDelta;
  if (resync) way = parts_.desk.resync()->full() ? Way::kFull : Way::kDescription;
  SetStage("fetching", target.version);
  // By value: spools keep it.
  const auto wanted = [this, order] { return parts_.group->Wants(order); };
  DWS_ASSIGN_OR_RETURN(Prepared prepared, preparer_.Prepare(*weights_, live_, target, way, wanted));
  for (uint32_t r = 0; r < prepared.ranks.size(); ++r) {
    parts_.senders.Staged(target, TrainerRank(r));
  }
  if (!EngineIsCurrent()) {
    return UnavailableError("the engine attached anew, or has gone, while it was staged for");
  }
  return prepared;
}

void Worker::ShowGroup() {
  const std::string waits_for = parts_.group->view().waits_for;
  if (live_.proved() && group_work_.released) {
    SetTrouble(group_work_.trouble.empty() ? waits_for : group_work_.trouble);
    return SetReadiness(true, "");
  }
  // In the middle of a commit; it is looked at again before long.
  const auto& since = group_work_.paused_since;
  if (since.has_value() && parts_.clock.Now() - *since < limits::kKeepaliveInterval) return;
  if (live_.drifted) return SetReadiness(false, "the engine is paused: " + DriftReason());
  std::string reason = waits_for;
  if (reason.empty()) reason = group_work_.trouble;
  if (reason.empty() && !parts_.subscription.Target().has_value()) {
    reason = parts_.subscription.MissingTarget();
  }
  if (reason.empty() && parts_.group->leads()) {
    reason = "its commit group brings all members to one version";
  } else if (reason.empty()) {
    reason = fmt::format(
        "its commit group's leader releases it; what that waits for is in the status "
        "of the receiver at {}",
        parts_.group->place().leader_address);
  }
  SetReadiness(false, "the engine is paused: " + reason);
}

}  // namespace dws
