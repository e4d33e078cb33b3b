#include "sender_daemon/app/sender_operations.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "sender_daemon/app/sender_readiness.h"
#include "sender_daemon/capture/snapshot_check.h"

namespace dws {
namespace {

// How often a drain checks, and how long a verification waits for a gap between captures before it
// reports progress.
constexpr std::chrono::milliseconds kLook{200};
constexpr size_t kNamesMax = 5;
constexpr int kMismatchesShown = 100;  // as proto/admin.proto promises

Status HungUp() { return CancelledError("the caller hung up, or the sender is stopping"); }

bool HasCommitted(const AnnouncerState::Receiver& receiver, WeightVersion version) {
  return receiver.committed.has_value() && *receiver.committed >= version;
}

void FillMismatch(const RankState& state, const SliceDifference& difference,
                  v1::SliceMismatch& mismatch) {
  mismatch.set_tensor(state.layout().tensor(difference.slice).name);
  mismatch.set_trainer_rank(state.trainer_rank.value());
  mismatch.set_rank_slice(difference.slice.value());
  mismatch.set_version(difference.version.value());
  *mismatch.mutable_expected() = ToProto(difference.expected);
  *mismatch.mutable_found() = ToProto(difference.found);
}

// What the newest version changed; nothing if it was compared with none.
void FillDensity(const RankState& state, const RetainedVersion& newest, v1::SenderStatus& sender) {
  const std::optional<double> density_ratio = DensityOf(state, newest);
  if (!density_ratio.has_value()) return;
  sender.set_density_ratio(*density_ratio);
  if (!newest.base.has_value()) return;
  DWS_CHECK(!newest.object.empty());
  v1::DensityStatus& status = *sender.mutable_density();
  status.set_reduction_ratio(static_cast<double>(state.layout().size_bytes()) /
                             static_cast<double>(newest.object.size()));
  const VersionDensity& density = newest.density;
  status.set_groups(static_cast<uint32_t>(density.groups));
  status.set_dense_groups(static_cast<uint32_t>(density.dense_groups));
  status.set_dense_bytes(density.dense_bytes);
  status.set_version_dense(density.dense);
  for (const GroupDensity& group : density.worst) {
    v1::DenseGroup& row = *status.add_worst();
    row.set_name(group.name);
    row.set_elements(group.elements);
    row.set_changed(group.changed);
    row.set_full_bytes(group.full_bytes);
    row.set_wire_bytes(group.wire_bytes);
  }
}

void FillView(const ReceiverHub::ServedView& view, v1::ViewStatus& status) {
  status.set_name(view.name);
  const RetainedVersionPtr newest = view.state->log->Newest();
  if (newest != nullptr) status.set_newest_version(newest->version.value());
  status.set_snapshot_bytes(view.state->snapshot->memory().places().size_bytes());
  status.set_retained_bytes(view.state->log->retained_bytes());
  status.set_receivers(view.receivers);
}

}  // namespace

SenderOperations::SenderOperations(Names names, Parts parts)
    : names_(std::move(names)), parts_(std::move(parts)), started_(parts_.clock.Now()) {}

void SenderOperations::FillStatus(v1::StatusReply& reply) const {
  const Lifecycle::State life = parts_.lifecycle.state();
  reply.set_daemon("dws-sender");
  reply.set_job_id(names_.job_id);
  reply.set_ready(life.ready);
  reply.set_reason(life.ready ? parts_.failure().value_or(PlaceFailure()).reason : life.reason);
  reply.set_uptime_seconds(ToSeconds(parts_.clock.Now() - started_));
  reply.set_drain(!parts_.drain.draining() ? v1::DRAIN_STATE_NONE
                  : Remaining().empty()    ? v1::DRAIN_STATE_DRAINED
                                           : v1::DRAIN_STATE_DRAINING);
  v1::SenderStatus& sender = *reply.mutable_sender();
  sender.set_trainer_rank(names_.trainer_rank);
  sender.set_trainer_present(parts_.session.trainer_present());
  sender.set_retain_bytes_max(names_.log_limits.bytes_max);
  sender.set_retain_versions_max(names_.log_limits.versions_max);
  for (const auto& sink : parts_.sinks) sink->FillStatus(sender);
  parts_.history.Fill(sender);
  sender.set_fabric(parts_.fabric.Text());
  if (parts_.peers != nullptr) parts_.peers->FillStatus(sender);
  for (const auto& view : parts_.hub.Views()) FillView(view, *sender.add_views());
  if (const RankStatePtr state = parts_.hub.Current(); state != nullptr) {
    FillState(*state, parts_.hub.Receivers(), sender);
  }
}

void SenderOperations::FillState(const RankState& state,
                                 const std::map<std::string, AnnouncerState::Receiver>& receivers,
                                 v1::SenderStatus& sender) const {
  *sender.mutable_stream() = ToProto(state.stream);
  sender.set_world_size(state.world_size);
  sender.set_rank_epoch(state.rank_epoch.value());
  sender.set_snapshot_bytes(state.snapshot->memory().places().size_bytes());
  sender.set_retained_bytes(state.log->retained_bytes());
  sender.set_kept_bytes(state.snapshot->reads().held_bytes());
  const std::vector<RetainedVersionPtr> versions = state.log->All();
  if (!versions.empty()) FillDensity(state, *versions.back(), sender);
  for (const RetainedVersionPtr& version : versions) {
    v1::VersionStatus& row = *sender.add_versions();
    row.set_version(version->version.value());
    row.set_base_version(version->base.value_or(WeightVersion(0)).value());
    row.set_nnz(version->nnz);
    row.set_elements(state.layout().element_count());
    row.set_full_bytes(state.layout().size_bytes());
    row.set_wire_bytes(version->wire_bytes(row.full_bytes()));
    row.set_capture_seconds(version->capture_seconds);
    FillStages(version->stages, *row.mutable_stages());
    row.set_age_seconds(ToSeconds(parts_.clock.Now() - version->accepted_at));
    row.set_committed(static_cast<uint32_t>(
        std::count_if(receivers.begin(), receivers.end(), [&](const auto& entry) {
          return entry.second.connection.has_value() &&
                 HasCommitted(entry.second, version->version);
        })));
    sender.set_newest_version(version->version.value());
    sender.set_seconds_since_version(row.age_seconds());
  }
}

Status SenderOperations::Verify(const Sink& progress) {
  const RankStatePtr state = parts_.hub.Current();
  if (state == nullptr) {
    return FailedPreconditionError(
        "no trainer has registered with this sender yet: there is nothing to verify");
  }
  SnapshotCheck check(state->snapshot);
  v1::OperationProgress message;
  message.set_total_bytes(state->layout().size_bytes());
  std::vector<v1::SliceMismatch> mismatched;
  TimePoint told = parts_.clock.Now() - kLook;
  while (!check.done()) {
    auto difference = check.Next(kLook);
    if (!difference.ok() && difference.status().code() != absl::StatusCode::kDeadlineExceeded) {
      return difference.status();
    }
    if (difference.ok() && difference->has_value()) {
      message.set_mismatches(message.mismatches() + 1);
      if (!(*difference)->known) parts_.metrics.OnVerifyMismatches(1);
      if (message.mismatches() <= kMismatchesShown) {
        FillMismatch(*state, **difference, mismatched.emplace_back());
        LogSnapshotDamaged(state->layout(), **difference);
      }
    }
    if (parts_.clock.Now() - told < kLook) continue;
    told = parts_.clock.Now();
    message.set_step(difference.ok() ? "comparing the snapshot"
                                     : "waiting for a gap between captures");
    message.set_done_bytes(check.done_bytes());
    if (!progress(message)) return HungUp();
  }
  DWS_CHECK(check.done_bytes() == state->layout().size_bytes());
  const RetainedVersionPtr newest = state->log->Newest();
  message.set_step("compared the snapshot");
  message.set_done_bytes(check.done_bytes());
  message.set_version(newest == nullptr ? 0 : newest->version.value());
  for (v1::SliceMismatch& mismatch : mismatched) *message.add_mismatched() = std::move(mismatch);
  message.set_finished(true);
  LogInfo("verified", {{"bytes", check.done_bytes()}, {"mismatches", message.mismatches()}});
  progress(message);
  return OkStatus();
}

Status SenderOperations::Resync(const v1::ResyncRequest&, const Sink&) {
  return FailedPreconditionError(
      "a sender has nothing to resynchronise, its trainer is always right: ask the receiver "
      "(`dwsctl resync --address` of the receiver)");
}

Status SenderOperations::Evict(const v1::EvictRequest& request, const Sink& progress) {
  if (request.receiver_id().empty()) {
    return FailedPreconditionError(
        "a sender has no commit group: name the absent receiver to be forgotten (`dwsctl evict "
        "--receiver`), or ask the receiver that leads the group");
  }
  DWS_RETURN_IF_ERROR(parts_.hub.Forget(request.receiver_id()));
  LogInfo("receiver_evicted", {{"id", request.receiver_id()}, {"reason", request.reason()}});
  v1::OperationProgress message;
  message.set_step(fmt::format("receiver '{}' is forgotten", request.receiver_id()));
  message.set_finished(true);
  progress(message);
  return OkStatus();
}

Status SenderOperations::ForgetStream(const v1::ForgetStreamRequest& request,
                                      const Sink& progress) {
  DWS_RETURN_IF_ERROR(parts_.forget_stream(AsStands(request.stream())));
  v1::OperationProgress message;
  message.set_step("the stream is forgotten: the next trainer that registers begins a new one");
  message.set_finished(true);
  progress(message);
  return OkStatus();
}

std::string SenderOperations::Remaining() const {
  // In this order, because a version moves from capture to the pipeline, then to the log.
  if (parts_.session.publishing()) return "the version that is being captured";
  if (!parts_.pipeline.idle()) return "captured versions that are not recorded yet";
  const RankStatePtr state = parts_.hub.Current();
  const RetainedVersionPtr newest = state == nullptr ? nullptr : state->log->Newest();
  if (newest == nullptr) return "";
  std::string names;
  size_t count = 0;
  for (const auto& [id, receiver] : parts_.hub.Receivers()) {
    if (!receiver.connection.has_value() || HasCommitted(receiver, newest->version)) continue;
    if (++count <= kNamesMax) names += fmt::format("{}'{}'", count == 1 ? "" : ", ", id);
  }
  if (count > kNamesMax) names += fmt::format(" and {} more", count - kNamesMax);
  return count == 0 ? "" : fmt::format("{} to commit version {}", names, newest->version.value());
}

v1::OperationProgress SenderOperations::DrainProgress(std::string step) const {
  v1::OperationProgress message;
  message.set_step(std::move(step));
  const RankStatePtr state = parts_.hub.Current();
  const RetainedVersionPtr newest = state == nullptr ? nullptr : state->log->Newest();
  message.set_version(newest == nullptr ? 0 : newest->version.value());
  return message;
}

Status SenderOperations::Drain(const v1::DrainRequest& request, const Sink& progress) {
  parts_.drain.Set(!request.undo());
  LogInfo(request.undo() ? "drain_undone" : "draining");
  parts_.on_drain();
  {
    MutexLock lock(mutex_);
    drain_changed_.NotifyAll();
  }
  if (request.undo()) {
    v1::OperationProgress message = DrainProgress("taking versions again");
    message.set_finished(true);
    progress(message);
    return OkStatus();
  }
  while (true) {
    if (!parts_.drain.draining()) return AbortedError("the drain was undone meanwhile");
    const std::string remaining = Remaining();
    v1::OperationProgress message =
        DrainProgress(remaining.empty() ? "every receiver present has the newest version"
                                        : fmt::format("waiting for {}", remaining));
    message.set_finished(remaining.empty());
    const bool listening = progress(message);
    if (remaining.empty()) {
      LogInfo("drained", {{"version", message.version()}});
      return OkStatus();
    }
    if (!listening) return HungUp();
    MutexLock lock(mutex_);
    drain_changed_.WaitFor(mutex_, kLook);
  }
}

}  // namespace dws
