#include "receiver_daemon/app/receiver_operations.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "receiver_daemon/app/receiver_plan.h"
#include "receiver_daemon/app/receiver_status.h"

namespace dws {
namespace {

v1::OperationProgress ToProgress(const TaskProgress& task) {
  v1::OperationProgress progress;
  progress.set_step(task.step);
  progress.set_done_bytes(task.done_bytes);
  progress.set_total_bytes(task.total_bytes);
  if (task.version.has_value()) progress.set_version(task.version->value());
  progress.set_mismatches(task.mismatches);
  return progress;
}

void AddMismatches(const TaskProgress& task, v1::OperationProgress& progress) {
  DWS_CHECK(task.mismatched.size() <=
            std::min<uint64_t>(task.mismatches, limits::kMismatchesNamedMax));
  for (const SliceMismatch& mismatch : task.mismatched) {
    v1::SliceMismatch& row = *progress.add_mismatched();
    row.set_tensor(mismatch.tensor);
    row.set_trainer_rank(mismatch.rank.value());
    row.set_rank_slice(mismatch.slice.value());
    row.set_version(mismatch.version.value());
    *row.mutable_expected() = ToProto(mismatch.expected);
    if (mismatch.found.has_value()) *row.mutable_found() = ToProto(*mismatch.found);
  }
}

// Returns the troubles of a receiver that is ready in spite of them.
std::string Troubles(const WorkerStatus& worker) {
  if (worker.trouble.empty() || worker.stale.empty()) return worker.trouble + worker.stale;
  return worker.trouble + "; " + worker.stale;
}

}  // namespace

ReceiverOperations::ReceiverOperations(ReceiverName name, Parts parts)
    : name_(std::move(name)), parts_(std::move(parts)), started_(parts_.clock.Now()) {}

void ReceiverOperations::FillStatus(v1::StatusReply& reply) const {
  const Lifecycle::State state = parts_.lifecycle.state();
  const WorkerStatus worker = parts_.worker.status();
  reply.set_daemon("dws-receiver");
  reply.set_job_id(name_.job_id);
  reply.set_ready(state.ready);
  reply.set_reason(state.ready ? Troubles(worker) : state.reason);
  reply.set_uptime_seconds(ToSeconds(parts_.clock.Now() - started_));
  switch (worker.drain) {
    case DrainStage::kNone:
      break;
    case DrainStage::kDraining:
      reply.set_drain(v1::DRAIN_STATE_DRAINING);
      break;
    case DrainStage::kDrained:
      reply.set_drain(v1::DRAIN_STATE_DRAINED);
      break;
  }
  FillReceiverStatus(name_.receiver_id, worker, parts_.subscription, parts_.registry,
                     parts_.sources, parts_.clock.Now(), *reply.mutable_receiver());
  reply.mutable_receiver()->set_view(parts_.view);
  for (v1::CommittedVersion& row : parts_.history.All()) {
    *reply.mutable_receiver()->add_history() = std::move(row);
  }
  if (parts_.group != nullptr) {
    if (!parts_.group->place().leads()) reply.mutable_receiver()->clear_commit_policy();
    FillGroupStatus(*parts_.group, *reply.mutable_receiver()->mutable_group());
  }
  if (parts_.broadcasts != nullptr) {
    FillBroadcasts(parts_.broadcasts->BroadcastTotals(),
                   *reply.mutable_receiver()->mutable_broadcast());
  }
  if (parts_.store != nullptr) {
    FillStoreStatus(*parts_.store, parts_.clock.Now(), *reply.mutable_receiver()->mutable_store());
  }
  if (parts_.host_share != nullptr) {
    FillHostShare(parts_.host_share->totals(), *reply.mutable_receiver()->mutable_host_share());
  }
  if (parts_.peers != nullptr) {
    parts_.peers->FillStatus(*reply.mutable_receiver()->mutable_served_peers());
  }
}

Result<v1::PlanReply> ReceiverOperations::Plan() const {
  const std::optional<AttachedEngine> engine = parts_.registry.Engine();
  if (!engine.has_value()) {
    return FailedPreconditionError("there is no plan: {}", parts_.registry.Missing());
  }
  v1::PlanReply reply;
  reply.set_job_id(name_.job_id);
  reply.set_receiver_id(name_.receiver_id);
  FillPlan(*engine, parts_.worker.status(), reply);
  return reply;
}

Status ReceiverOperations::Follow(OperatorTask& task, const Sink& progress) const {
  while (true) {
    const std::optional<Status> outcome = task.Await(limits::kProgressInterval);
    const TaskProgress now = task.progress();
    v1::OperationProgress message = ToProgress(now);
    if (outcome.has_value()) {
      if (!outcome->ok()) return *outcome;
      AddMismatches(now, message);
      message.set_finished(true);
      progress(message);
      return OkStatus();
    }
    const WorkerStatus worker = parts_.worker.status();
    if (now.total_bytes == 0) {  // nothing is being read now: show the bytes that are fetched
      message.set_done_bytes(worker.stage_done_bytes);
      message.set_total_bytes(worker.stage_total_bytes);
    }
    if (now.step.empty()) message.set_step("waits for its turn: " + worker.stage);
    if (!progress(message)) return CancelledError("the caller hung up");
  }
}

Status ReceiverOperations::Verify(const Sink& progress) {
  DWS_ASSIGN_OR_RETURN(const OperatorTaskPtr task, parts_.requests.Verify());
  const Status status = Follow(*task, progress);
  task->Cancel();
  return status;
}

Status ReceiverOperations::Resync(const v1::ResyncRequest& request, const Sink& progress) {
  if (!parts_.registry.Engine().has_value()) {
    return FailedPreconditionError(
        "there is nothing to resync: {}; when it attaches, all digests are read anyway",
        parts_.registry.Missing());
  }
  DWS_ASSIGN_OR_RETURN(const OperatorTaskPtr task, parts_.requests.Resync(request.full()));
  return Follow(*task, progress);
}

Status ReceiverOperations::ForgetStream(const v1::ForgetStreamRequest& request,
                                        const Sink& progress) {
  DWS_ASSIGN_OR_RETURN(const OperatorTaskPtr task,
                       parts_.requests.Forget(AsStands(request.stream())));
  return Follow(*task, progress);
}

Status ReceiverOperations::Boundary(const Sink& progress) {
  const WorkerStatus before = parts_.worker.status();
  if (parts_.group != nullptr && !parts_.group->place().leads()) {
    const GroupPlace& place = parts_.group->place();
    return FailedPreconditionError(
        "this is member {} of group '{}': ask its leader, {}, whose --commit-policy holds for all "
        "members",
        place.index, place.group_id, place.leader_address);
  }
  if (!before.commit_policy.holds()) {
    return FailedPreconditionError(
        "--commit-policy is {}: nothing is held back, every version is committed once it is staged",
        ToString(before.commit_policy));
  }
  const auto task = std::make_shared<OperatorTask>(false);
  CommitBoundary& boundary = parts_.worker.boundary();
  const uint64_t id = boundary.NewId();
  task->Update([&](TaskProgress& now) { now.step = "waiting for the commit of the held version"; });
  DWS_RETURN_IF_ERROR(boundary.Begin(id, false, [this, task, before](const Status& status) {
    const std::optional<VersionAt> live = parts_.worker.status().live;
    task->Update([&](TaskProgress& now) {
      if (live.has_value()) now.version = live->version;
      now.step = live == before.live ? "nothing was held" : "the held version is committed";
    });
    task->End(status);
  }));
  const Status status = Follow(*task, progress);
  static_cast<void>(boundary.Drop(id));
  return status;
}

Status ReceiverOperations::Drain(const v1::DrainRequest& request, const Sink& progress) {
  const DrainStage wanted = request.undo() ? DrainStage::kNone : DrainStage::kDrained;
  parts_.requests.SetDraining(!request.undo());
  while (true) {
    const DrainStage stage = parts_.requests.AwaitDrain(wanted, limits::kProgressInterval);
    const WorkerStatus worker = parts_.worker.status();
    v1::OperationProgress message;
    if (worker.live.has_value()) message.set_version(worker.live->version.value());
    message.set_done_bytes(worker.stage_done_bytes);
    message.set_total_bytes(worker.stage_total_bytes);
    message.set_finished(stage == wanted);
    message.set_step(!message.finished() ? "waiting for the work in flight: " + worker.stage
                     : request.undo()    ? "versions are committed again"
                                         : "drained");
    if (!progress(message)) return CancelledError("the caller hung up");
    if (message.finished()) return OkStatus();
    if (parts_.requests.draining() == request.undo()) {
      return AbortedError("another operator has {} meanwhile",
                          request.undo() ? "drained the receiver" : "undone the drain");
    }
  }
}

Status ReceiverOperations::Evict(const v1::EvictRequest& request, const Sink& progress) {
  if (!request.receiver_id().empty()) {
    return FailedPreconditionError(
        "asked to forget receiver '{}', which a sender does: expected the --socket or --address of "
        "a sender, found receiver '{}'",
        request.receiver_id(), name_.receiver_id);
  }
  if (parts_.group == nullptr)
    return FailedPreconditionError("this receiver is in no commit group");
  if (request.reason().size() > limits::kEvictReasonBytesMax) {
    return InvalidArgumentError("the reason has {} bytes, expected at most {}",
                                request.reason().size(), limits::kEvictReasonBytesMax);
  }
  DWS_RETURN_IF_ERROR(parts_.group->Evict(request.member_index(), request.reason()));
  v1::OperationProgress message;
  message.set_step(
      fmt::format("member {} was evicted, the engine has ended", request.member_index()));
  message.set_finished(true);
  progress(message);
  return OkStatus();
}

}  // namespace dws
