// All knowledge that a leader relies on is in the record, and everything that a crash takes away
// (what was pushed, who is connected) only leads to an attempt that is lost.
#include "common/train_state/minibatch_member_state.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/utf8.h"

namespace dws {

MinibatchMemberState::MinibatchMemberState(TrainerRank rank, RankEpoch epoch,
                                           std::optional<MemberRecord> record)
    : rank_(rank), epoch_(epoch) {
  if (!record.has_value()) return;
  record_ = *std::move(record);
  Change();
  if (Undecided()) Lose(fmt::format("the sender of rank {} started again", rank.value()), rank);
}

void MinibatchMemberState::Lose(std::string_view reason, std::optional<TrainerRank> because_of) {
  if (!Undecided() || !lost_.empty()) return;
  lost_ = Utf8Prefix(reason, limits::kAbandonReasonBytesMax);
  lost_rank_ = because_of;
  Change();
}

Status MinibatchMemberState::Follow(LeaderTerm term) {
  if (term < record_.term) {
    return FailedPreconditionError("a message of the leader's term {}: rank {} follows term {}",
                                   term.value(), rank_.value(), record_.term.value());
  }
  if (term > record_.term) {
    record_.term = term;
    Change();
  }
  return OkStatus();
}

Status MinibatchMemberState::OnDown(const TrainDown& down) {
  DWS_RETURN_IF_ERROR(Validate(down));
  DWS_RETURN_IF_ERROR(Follow(down.term));
  if (std::holds_alternative<TrainAsk>(down.what)) return OkStatus();
  if (down.epoch != epoch_) {
    return FailedPreconditionError(
        "a decision is for process {} of rank {}'s sender, and this is process {}",
        down.epoch.value(), rank_.value(), epoch_.value());
  }
  if (const auto* step = std::get_if<StepDecision>(&down.what)) return Obey(*step);
  return Obey(std::get<AbandonDecision>(down.what), down.last_step);
}

Status MinibatchMemberState::Obey(const StepDecision& step) {
  const auto contradiction = [&](std::string_view why) {
    return FailedPreconditionError("Step of {} is refused by rank {}: {}", ToString(step.attempt),
                                   rank_.value(), why);
  };
  if (!record_.attempt.has_value()) return contradiction("it has not joined");
  if (step.attempt.minibatch < record_.attempt->minibatch) {
    const bool last = record_.last_step.has_value() &&
                      record_.last_step->attempt.minibatch == step.attempt.minibatch;
    if (!last || record_.last_step == step) return OkStatus();
    return contradiction("another one was decided");
  }
  if (record_.step.has_value() && record_.step == step) return OkStatus();
  if (record_.step.has_value()) return contradiction("another one was decided");
  if (step.attempt != *record_.attempt) {
    return contradiction(fmt::format("it is at {}", ToString(*record_.attempt)));
  }
  if (!record_.sealed.has_value()) return contradiction("its gradient is not sealed");
  record_.step = step;
  lost_.clear();
  lost_rank_.reset();
  Change();
  return OkStatus();
}

Status MinibatchMemberState::Obey(const AbandonDecision& abandon,
                                  const std::optional<StepDecision>& last_step) {
  const AttemptId& next = abandon.next;
  if (!record_.attempt.has_value()) {
    // Without its rank it has no version yet, so the leader cannot mean it.
    if (record_.version == WeightVersion(0)) return OkStatus();
    record_.last_step = last_step;
  } else {
    if (next <= *record_.attempt) return OkStatus();
    // Its own report of the next minibatch, or of this one, is on its way, or a Step to it is.
    if (next.minibatch > record_.attempt->minibatch) return OkStatus();
    if (record_.step.has_value()) {
      return FailedPreconditionError("{} is refused by rank {}: Step of {} was decided",
                                     ToString(next), rank_.value(), ToString(*record_.attempt));
    }
  }
  record_.attempt = next;
  record_.sealed.reset();
  finished_ = false;
  lost_.clear();
  lost_rank_.reset();
  Change();
  return OkStatus();
}

Status MinibatchMemberState::OnRank(WeightVersion version) {
  if (version == WeightVersion(0)) return InvalidArgumentError("version 0 does not exist");
  if (record_.version != WeightVersion(0) && record_.version != version) {
    return FailedPreconditionError(
        "rank {} holds version {}, and version {} is published: start the job again from a "
        "checkpoint that all ranks have",
        rank_.value(), version.value(), record_.version.value());
  }
  rank_present_ = true;
  if (record_.version == version) return OkStatus();
  record_.version = version;
  Change();
  return OkStatus();
}

void MinibatchMemberState::OnRankLost(std::string_view process) {
  // What is not connected has done nothing in the attempt.
  if (!std::exchange(rank_present_, false)) return;
  Lose(fmt::format("the process of rank {}{}{} is gone", rank_.value(), process.empty() ? "" : ", ",
                   process),
       rank_);
}

Status MinibatchMemberState::AskToAbandon(const AttemptId& attempt, std::string_view reason,
                                          std::optional<TrainerRank> because_of) {
  if (record_.attempt != attempt) return AbortedError("{} is over", ToString(attempt));
  if (record_.step.has_value()) {
    return FailedPreconditionError("{} cannot be abandoned: Step is decided", ToString(attempt));
  }
  Lose(reason.empty() ? "its rank asked for it" : reason, because_of);
  return OkStatus();
}

Status MinibatchMemberState::OnFinished(const AttemptId& attempt) {
  if (record_.attempt != attempt) return AbortedError("{} is over", ToString(attempt));
  if (!lost_.empty()) return AbortedError("{} is lost: {}", ToString(attempt), lost_);
  if (!std::exchange(finished_, true)) Change();
  return OkStatus();
}

Status MinibatchMemberState::OnSealed(const AttemptId& attempt, const SealedGradient& sealed) {
  if (record_.attempt != attempt) return AbortedError("{} is over", ToString(attempt));
  if (!lost_.empty()) return AbortedError("{} is lost: {}", ToString(attempt), lost_);
  DWS_CHECK(!record_.sealed.has_value() && !record_.step.has_value());
  record_.sealed = sealed;
  Change();
  return OkStatus();
}

Status MinibatchMemberState::MayEnd(uint64_t minibatch, bool finite) const {
  const bool decided = record_.step.has_value() && record_.attempt->minibatch == minibatch;
  if (!decided) {
    return FailedPreconditionError("minibatch {} of rank {} is not decided: {}", minibatch,
                                   rank_.value(), WaitsFor());
  }
  if (record_.step->finite == finite) return OkStatus();
  return FailedPreconditionError("the gradient of minibatch {} is {}: all ranks {}", minibatch,
                                 finite ? "not finite" : "finite",
                                 finite ? "skip the step" : "publish the next version");
}

Status MinibatchMemberState::MayPublish(uint64_t minibatch, WeightVersion version) const {
  DWS_RETURN_IF_ERROR(MayEnd(minibatch, true));
  if (version.value() == record_.version.value() + 1) return OkStatus();
  return FailedPreconditionError("version {} of rank {}: minibatch {} leads from {} to {}",
                                 version.value(), rank_.value(), minibatch, record_.version.value(),
                                 record_.version.value() + 1);
}

Status MinibatchMemberState::OnPublished(uint64_t minibatch, WeightVersion version) {
  DWS_RETURN_IF_ERROR(MayPublish(minibatch, version));
  OpenNext(version);
  return OkStatus();
}

Status MinibatchMemberState::OnSkipped(uint64_t minibatch) {
  const std::optional<StepDecision>& last = record_.last_step;
  const bool once_more = last.has_value() && last->attempt.minibatch == minibatch && !last->finite;
  if (once_more) return OkStatus();
  DWS_RETURN_IF_ERROR(MayEnd(minibatch, false));
  OpenNext(record_.version);
  return OkStatus();
}

void MinibatchMemberState::OpenNext(WeightVersion version) {
  record_.version = version;
  record_.attempt = FirstAttemptAfter(*record_.attempt);
  record_.last_step = std::exchange(record_.step, std::nullopt);
  record_.sealed.reset();
  finished_ = false;
  Change();
}

bool MinibatchMemberState::TakeChanged() { return std::exchange(changed_, false); }

std::optional<TrainReport> MinibatchMemberState::Report() const {
  if (record_.version == WeightVersion(0)) return std::nullopt;
  return TrainReport{.epoch = epoch_,
                     .sequence = sequence_,
                     .record = record_,
                     .finished = finished_,
                     .lost = lost_,
                     .lost_rank = lost_rank_};
}

MinibatchMemberState::Phase MinibatchMemberState::phase() const {
  if (!record_.attempt.has_value()) return Phase::kJoining;
  if (record_.step.has_value()) {
    return record_.step->finite ? Phase::kStepped : Phase::kToBeSkipped;
  }
  if (!lost_.empty()) return Phase::kLost;
  return record_.sealed.has_value() ? Phase::kSealed : Phase::kOpen;
}

std::string MinibatchMemberState::WaitsFor() const {
  const uint32_t rank = rank_.value();
  const std::string_view away = rank_present_ ? "" : ", which is not connected,";
  switch (phase()) {
    case Phase::kJoining:
      if (record_.version == WeightVersion(0)) return fmt::format("rank {} to register", rank);
      return "the leader to name an attempt";
    case Phase::kOpen:
      if (!rank_present_) return fmt::format("rank {} to connect", rank);
      return finished_ ? "the other ranks to finish" : fmt::format("rank {} to finish", rank);
    case Phase::kLost:
      return fmt::format("the leader to end the attempt: {}", lost_);
    case Phase::kSealed:
      return "the leader to decide";
    case Phase::kStepped:
      return fmt::format("rank {}{} to publish version {}", rank, away,
                         record_.version.value() + 1);
    case Phase::kToBeSkipped:
      return fmt::format("rank {}{} to skip the step of minibatch {}", rank, away,
                         record_.attempt->minibatch);
  }
  return "";
}

}  // namespace dws
