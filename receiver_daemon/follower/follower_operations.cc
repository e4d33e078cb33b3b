#include "receiver_daemon/follower/follower_operations.h"

#include <chrono>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "common/model/limits.h"

namespace dws {

namespace {

void FillHistory(const std::vector<AppliedVersion>& history, v1::ReceiverStatus& receiver) {
  for (const AppliedVersion& version : history) {
    v1::CommittedVersion& row = *receiver.add_history();
    row.set_version(version.version);
    const std::chrono::duration<double> at = version.at.time_since_epoch();
    row.set_unix_seconds(at.count());
    row.set_stage_seconds(version.apply_seconds);
    row.set_pause_seconds(version.pause_seconds);
  }
}

}  // namespace

void FollowerOperations::FillStatus(v1::StatusReply& reply) const {
  const Lifecycle::State state = lifecycle_.state();
  const FollowerView view = follower_.view();
  reply.set_daemon("dws-receiver");
  reply.set_job_id(name_.job_id);
  reply.set_ready(state.ready);
  reply.set_reason(!state.ready            ? state.reason
                   : !view.trouble.empty() ? view.trouble
                                           : view.waits_for);
  reply.set_uptime_seconds(ToSeconds(clock_.Now() - started_));
  if (view.drained) {
    reply.set_drain(view.stage == "idle" ? v1::DRAIN_STATE_DRAINED : v1::DRAIN_STATE_DRAINING);
  }
  v1::ReceiverStatus& receiver = *reply.mutable_receiver();
  receiver.set_receiver_id(name_.receiver_id);
  receiver.set_committed_version(view.current());
  receiver.set_newest_version(view.newest);
  if (view.lag_known()) receiver.set_version_lag(view.lag());
  receiver.set_stage(view.stage);
  receiver.set_commits(view.has_engine ? view.loads : view.applied);
  receiver.set_last_pause_seconds(view.last_pause_seconds);
  receiver.set_stale(view.stale);
  receiver.set_seconds_since_version(view.seconds_since_version);
  FillHistory(view.history, receiver);
  v1::FollowerStatus& follower = *receiver.mutable_follower();
  follower.set_folder(followed_.folder);
  follower.set_checkpoint(followed_.checkpoint);
  follower.set_engine_url(followed_.engine);
  if (view.version.has_value()) follower.set_checkpoint_version(*view.version);
  follower.set_loaded(view.loaded.has_value());
  if (view.loaded.has_value()) follower.set_loaded_version(*view.loaded);
  follower.set_newest_version(view.newest);
  if (view.lag_known()) follower.set_version_lag(view.lag());
  if (view.proof.has_value() && *view.proof != slime::BaseProof::kNotNeeded) {
    follower.set_base_proved_by(std::string(NameOf(*view.proof)));
  }
  follower.set_unproved(view.unproved);
  follower.set_waits_for(view.waits_for);
  follower.set_applied(view.applied);
  follower.set_applied_tensors(view.applied_tensors);
  follower.set_loads(view.loads);
  follower.set_failing(view.trouble);
  follower.set_seconds_failing(view.seconds_failing);
  follower.set_seconds_since_version(view.seconds_since_version);
  follower.set_last_pause_seconds(view.last_pause_seconds);
  follower.set_last_apply_seconds(view.last_apply_seconds);
}

Status FollowerOperations::Verify(const Sink& progress) {
  // Shared, because the follower may finish after this call has returned.
  const auto result = std::make_shared<std::promise<Status>>();
  std::future<Status> verified = result->get_future();
  follower_.RequestVerify([result](const Status& status) { result->set_value(status); });
  v1::OperationProgress message;
  while (verified.wait_for(limits::kProgressInterval) != std::future_status::ready) {
    const FollowerView view = follower_.view();
    message.set_step(view.stage == "verifying" ? "reads the local checkpoint"
                                               : "waits for its turn: " + view.stage);
    if (!progress(message)) return CancelledError("the caller hung up");
  }
  DWS_RETURN_IF_ERROR(verified.get());
  message.set_version(follower_.view().version.value_or(0));
  message.set_step("every tensor of the local checkpoint has its digest");
  message.set_finished(true);
  progress(message);
  return OkStatus();
}

Status FollowerOperations::Resync(const v1::ResyncRequest&, const Sink&) {
  return FailedPreconditionError(
      "this receiver follows a folder, and no sender can give it a full version: copy a full "
      "checkpoint to its place, without .weight_sync, and restart");
}

Status FollowerOperations::Drain(const v1::DrainRequest& request, const Sink& progress) {
  follower_.SetDrained(!request.undo());
  v1::OperationProgress message;
  while (!request.undo() && follower_.view().stage != "idle") {
    message.set_step("waiting for the work in flight: " + follower_.view().stage);
    if (!progress(message)) return CancelledError("the caller hung up");
    follower_.AwaitChange(limits::kProgressInterval);
  }
  message.set_version(follower_.view().version.value_or(0));
  message.set_step(request.undo() ? "versions are taken again" : "drained");
  message.set_finished(true);
  progress(message);
  return OkStatus();
}

Status FollowerOperations::Evict(const v1::EvictRequest&, const Sink&) {
  return FailedPreconditionError("this receiver is in no commit group");
}

Status FollowerOperations::ForgetStream(const v1::ForgetStreamRequest&, const Sink&) {
  return FailedPreconditionError("this receiver follows a folder, which has no streams");
}

}  // namespace dws
