// Checks of what arrives, apart from the states, so that these see only messages that a correct
// peer of this very job can send.
#include "common/train_state/train_messages.h"

#include <cmath>

namespace dws {
namespace {

Status Validate(const AttemptId& id) {
  if (id.minibatch > 0 && id.term > LeaderTerm(0) && id.attempt > 0) return OkStatus();
  return InvalidArgumentError("{} does not exist: all count from 1", ToString(id));
}

Status ValidateNumber(std::string_view what, double value, bool finite) {
  if (std::isfinite(value) && value >= 0 && (finite || value == 0)) return OkStatus();
  return InvalidArgumentError("a {} of {}, expected a finite number, or 0 of what is not finite",
                              what, value);
}

Status Validate(const StepDecision& step) {
  DWS_RETURN_IF_ERROR(Validate(step.attempt));
  DWS_RETURN_IF_ERROR(ValidateNumber("norm", step.norm, step.finite));
  return ValidateNumber("weight", step.weight, true);
}

Status ValidateLast(const std::optional<StepDecision>& last, const AttemptId& attempt) {
  if (!last.has_value()) return OkStatus();
  DWS_RETURN_IF_ERROR(Validate(*last));
  if (last->attempt.minibatch + 1 == attempt.minibatch) return OkStatus();
  return InvalidArgumentError("{} does not come before {}", ToString(last->attempt),
                              ToString(attempt));
}

}  // namespace

Status CheckJob(const TrainingJob& mine, const TrainingJob& theirs, TrainerRank from) {
  if (theirs.job_id != mine.job_id) {
    return FailedPreconditionError("a message of job '{}', this sender trains job '{}'",
                                   theirs.job_id, mine.job_id);
  }
  if (theirs.stream != mine.stream) {
    return FailedPreconditionError("a message of incarnation {}, this sender is of {}",
                                   ToString(theirs.stream), ToString(mine.stream));
  }
  if (theirs.world_size != mine.world_size) {
    return FailedPreconditionError("a message of a job of {} ranks, this one has {}",
                                   theirs.world_size, mine.world_size);
  }
  if (from.value() < mine.world_size) return OkStatus();
  return InvalidArgumentError("a message of rank {}, the job has {}", from.value(),
                              mine.world_size);
}

Status Validate(const MemberRecord& record) {
  if (record.version == WeightVersion(0)) return InvalidArgumentError("version 0 does not exist");
  const bool more =
      record.sealed.has_value() || record.step.has_value() || record.last_step.has_value();
  if (!record.attempt.has_value()) {
    if (!more) return OkStatus();
    return InvalidArgumentError("a member that has not joined cannot have a gradient or a step");
  }
  DWS_RETURN_IF_ERROR(Validate(*record.attempt));
  DWS_RETURN_IF_ERROR(ValidateLast(record.last_step, *record.attempt));
  if (record.attempt->minibatch > 1 && !record.last_step.has_value()) {
    return InvalidArgumentError("{} without the step before it", ToString(*record.attempt));
  }
  if (record.sealed.has_value()) {
    DWS_RETURN_IF_ERROR(
        ValidateNumber("sum of squares", record.sealed->sum_squares, record.sealed->finite));
    DWS_RETURN_IF_ERROR(ValidateNumber("weight", record.sealed->weight, true));
  }
  if (!record.step.has_value()) return OkStatus();
  DWS_RETURN_IF_ERROR(Validate(*record.step));
  if (record.step->attempt == record.attempt && record.sealed.has_value()) return OkStatus();
  return InvalidArgumentError("a step of {} without its gradient, at {}",
                              ToString(record.step->attempt), ToString(*record.attempt));
}

Status Validate(const TrainDown& down) {
  if (std::holds_alternative<TrainAsk>(down.what)) return OkStatus();
  if (const auto* step = std::get_if<StepDecision>(&down.what)) {
    DWS_RETURN_IF_ERROR(Validate(*step));
    return ValidateLast(down.last_step, step->attempt);
  }
  const auto& abandon = std::get<AbandonDecision>(down.what);
  DWS_RETURN_IF_ERROR(Validate(abandon.next));
  if (abandon.reason.size() > limits::kAbandonReasonBytesMax) {
    return InvalidArgumentError("a reason of {} bytes, at most {} are allowed",
                                abandon.reason.size(), limits::kAbandonReasonBytesMax);
  }
  DWS_RETURN_IF_ERROR(ValidateLast(down.last_step, abandon.next));
  if (abandon.next.minibatch == 1 || down.last_step.has_value()) return OkStatus();
  return InvalidArgumentError("{} is opened without the step before it", ToString(abandon.next));
}

Status Validate(const CombineRequest& request) {
  DWS_RETURN_IF_ERROR(Validate(request.attempt));
  if (request.units.size() <= limits::kTrainUnitsMax) return OkStatus();
  return InvalidArgumentError("a combiner asks for {} units, at most {} are supported",
                              request.units.size(), limits::kTrainUnitsMax);
}

Status Validate(const TrainReport& report) {
  if (report.lost.size() > limits::kAbandonReasonBytesMax) {
    return InvalidArgumentError("a reason of {} bytes, at most {} are allowed", report.lost.size(),
                                limits::kAbandonReasonBytesMax);
  }
  return Validate(report.record);
}

}  // namespace dws
