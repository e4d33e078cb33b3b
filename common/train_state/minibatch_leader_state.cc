// A leader keeps nothing over its own end: the members' records together are its memory. So every
// decision follows from reports alone, and a leader that starts again finds what the last one did.
#include "common/train_state/minibatch_leader_state.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/check.h"
#include "common/base/utf8.h"

namespace dws {

MinibatchLeaderState::MinibatchLeaderState(uint32_t ranks, LeaderTerm term, Duration peer_timeout,
                                           TimePoint now)
    : term_(term), peer_timeout_(peer_timeout), last_tick_(now), members_(ranks), since_(now) {
  DWS_CHECK(ranks > 0 && ranks <= limits::kTrainRanksMax);
  SendAll(now);
}

bool MinibatchLeaderState::InAttempt(const Member& member) const {
  // What a process that another one has replaced last said is no longer so.
  return member.report.has_value() && !member.ask && member.report->record.attempt == attempt_;
}

Status MinibatchLeaderState::OnReport(TrainerRank rank, const TrainReport& report, TimePoint now) {
  if (rank.value() >= members_.size()) {
    return InvalidArgumentError("a report of rank {}, the job has {}", rank.value(),
                                members_.size());
  }
  DWS_RETURN_IF_ERROR(Validate(report));
  if (report.record.term > term_) {
    return FailedPreconditionError("rank {} follows the leader's term {}, this one's is {}",
                                   rank.value(), report.record.term.value(), term_.value());
  }
  Member& member = members_[rank.value()];
  if (report.record.term < term_) {
    // Rule 3. It has not promised anything yet, as a process without a record, so it is asked
    // again.
    const bool is_new = !member.report.has_value() || report.epoch > member.report->epoch;
    if (is_new && !std::exchange(member.ask, true)) member.next_send = now;
    return OkStatus();
  }
  if (member.report.has_value()) {
    const auto order = [](const TrainReport& r) { return std::pair(r.epoch, r.sequence); };
    if (order(report) < order(*member.report)) return OkStatus();
    member.heard = now;
    if (order(report) == order(*member.report)) return OkStatus();
  }
  member.heard = now;
  member.report = report;
  member.ask = false;
  member.next_send = now;
  if (broken_.has_value()) return OkStatus();
  Advance(rank, now);
  return OkStatus();
}

void MinibatchLeaderState::Advance(TrainerRank rank, TimePoint now) {
  if (asking_) {
    const auto reported = [](const Member& member) { return member.report.has_value(); };
    if (std::all_of(members_.begin(), members_.end(), reported)) Recover(now);
    return;
  }
  const TrainReport& report = *members_[rank.value()].report;
  if (!report.record.attempt.has_value()) {
    Join(rank, now);
    if (!broken_.has_value()) AbandonForJoin(rank, now);
    return;
  }
  const AttemptId& at = *report.record.attempt;
  if (step_.has_value() && at.minibatch == attempt_.minibatch + 1) MoveOn(now);
  if (at > attempt_ || at.minibatch + 1 < attempt_.minibatch) {
    broken_ = fmt::format("rank {} is at {}, the leader at {}", rank.value(), ToString(at),
                          ToString(attempt_));
    return;
  }
  if (at != attempt_ || step_.has_value()) return;
  if (!report.lost.empty()) return Abandon(report.lost, report.lost_rank, now);
  DecideIfSealed(now);
}

// Rule 3, with all reports here.
void MinibatchLeaderState::Recover(TimePoint now) {
  asking_ = false;
  AdoptNewest(now);
  for (uint32_t r = 0; r < members_.size() && !broken_.has_value(); ++r) {
    const MemberRecord& record = members_[r].report->record;
    if (!record.attempt.has_value()) {
      Join(TrainerRank(r), now);
      if (!broken_.has_value() && !abandon_.has_value()) AbandonForJoin(TrainerRank(r), now);
      continue;
    }
    const bool newest = record.attempt->minibatch == attempt_.minibatch;
    const bool contradicts = newest && ((record.step.has_value() && record.step != step_) ||
                                        (step_.has_value() && record.attempt != attempt_));
    if (contradicts || record.attempt->minibatch + 1 < attempt_.minibatch) {
      broken_ = fmt::format("rank {} is at {}, which another rank has left without it", r,
                            ToString(*record.attempt));
    }
  }
}

// The newest attempt that a member is in. Its Step is decided if a member knows it, else it is
// abandoned.
void MinibatchLeaderState::AdoptNewest(TimePoint now) {
  attempt_ = {.minibatch = 1};  // before the first attempt of all
  version_ = members_[0].report->record.version;
  for (const Member& member : members_) {
    const MemberRecord& record = member.report->record;
    if (!record.attempt.has_value() || *record.attempt < attempt_) continue;
    attempt_ = *record.attempt;
    version_ = record.version;
    last_step_ = record.last_step;
  }
  for (const Member& member : members_) {
    const MemberRecord& record = member.report->record;
    const bool newest = record.attempt.has_value() && record.attempt == attempt_;
    if (newest && record.step.has_value()) step_ = record.step;
  }
  if (!step_.has_value()) {
    Abandon(
        attempt_ == AttemptId{.minibatch = 1} ? "the training starts" : "the leader started again",
        TrainerRank(0), now);
  }
  since_ = now;
  SendAll(now);
}

// Rule 5: a member has no record.
void MinibatchLeaderState::Join(TrainerRank rank, TimePoint now) {
  const WeightVersion holds = members_[rank.value()].report->record.version;
  if (step_.has_value()) {
    const uint64_t next = version_.value() + (step_->finite ? 1 : 0);
    if (holds.value() == next) MoveOn(now);
  }
  if (step_.has_value() || holds != version_) {
    broken_ = fmt::format(
        "rank {} comes back with version {} and without its gradient, and {} {}: start the job "
        "again from a checkpoint that all ranks have",
        rank.value(), holds.value(), ToString(attempt_),
        step_.has_value() ? "is decided" : fmt::format("starts from version {}", version_.value()));
    return;
  }
}

// Others may have added pieces of its last process.
void MinibatchLeaderState::AbandonForJoin(TrainerRank rank, TimePoint now) {
  Abandon(fmt::format("rank {} starts without a record", rank.value()), rank, now);
}

void MinibatchLeaderState::MoveOn(TimePoint now) {
  if (step_->finite) version_ = WeightVersion(version_.value() + 1);
  attempt_ = FirstAttemptAfter(attempt_);
  last_step_ = std::exchange(step_, std::nullopt);
  abandon_.reset();
  since_ = now;
}

void MinibatchLeaderState::DecideIfSealed(TimePoint now) {
  StepDecision step;
  step.attempt = attempt_;
  double sum_squares = 0;
  for (uint32_t r = 0; r < members_.size(); ++r) {
    const Member& member = members_[r];
    if (!InAttempt(member) || !member.report->record.sealed.has_value()) return;
    const SealedGradient& sealed = *member.report->record.sealed;
    if (r == 0) step.weight = sealed.weight;
    if (sealed.weight != step.weight) {
      return Abandon(
          fmt::format("owner {} has a weight of {}, owner 0 of {}", r, sealed.weight, step.weight),
          TrainerRank(r), now);
    }
    step.finite = step.finite && sealed.finite;
    sum_squares += sealed.sum_squares;
  }
  step.finite = step.finite && std::isfinite(sum_squares);
  if (step.finite) step.norm = std::sqrt(sum_squares);
  step_ = step;
  since_ = now;
  SendAll(now);
}

void MinibatchLeaderState::Abandon(std::string_view reason, std::optional<TrainerRank> rank,
                                   TimePoint now) {
  DWS_CHECK(!step_.has_value());
  // Attempts of earlier leaders are before all of this one, known to it or not.
  const uint32_t last = attempt_.term == term_ ? attempt_.attempt : 0;
  attempt_ = {.minibatch = attempt_.minibatch, .term = term_, .attempt = last + 1};
  abandon_.emplace();
  abandon_->next = attempt_;
  abandon_->reason = Utf8Prefix(reason, limits::kAbandonReasonBytesMax);
  abandon_->rank = rank;
  ++abandoned_;
  since_ = now;
  SendAll(now);
}

void MinibatchLeaderState::OnDisconnect(TrainerRank rank, TimePoint now) {
  const Member& member = members_.at(rank.value());
  if (phase() != Phase::kOpen || !InAttempt(member)) return;  // rule 4
  Abandon(fmt::format("the sender of rank {} is gone", rank.value()), rank, now);
}

void MinibatchLeaderState::Tick(TimePoint now) {
  const bool stood_still = now - std::exchange(last_tick_, now) >= peer_timeout_ / 2;
  if (stood_still) {
    for (Member& member : members_) member.heard = now;
  }
  for (uint32_t r = 0; r < members_.size() && phase() == Phase::kOpen; ++r) {
    const Member& member = members_[r];
    if (!InAttempt(member) || now - member.heard < peer_timeout_) continue;
    Abandon(fmt::format("the sender of rank {} has been silent for {:.0f} s", r,
                        ToSeconds(now - member.heard)),
            TrainerRank(r), now);
  }
}

void MinibatchLeaderState::SendAll(TimePoint now) {
  for (Member& member : members_) member.next_send = now;
}

const StepDecision* MinibatchLeaderState::LacksStep(const MemberRecord& record) const {
  if (!record.attempt.has_value() || record.step.has_value()) return nullptr;
  const bool now = step_.has_value() && record.attempt == attempt_;
  const bool before =
      last_step_.has_value() && record.attempt->minibatch == last_step_->attempt.minibatch;
  return now ? &*step_ : before ? &*last_step_ : nullptr;
}

const AbandonDecision* MinibatchLeaderState::LacksAbandon(const MemberRecord& record) const {
  if (!abandon_.has_value() || broken_.has_value()) return nullptr;
  if (!record.attempt.has_value()) return &*abandon_;
  const bool earlier =
      record.attempt->minibatch == attempt_.minibatch && *record.attempt < attempt_;
  return earlier ? &*abandon_ : nullptr;
}

std::vector<MinibatchLeaderState::ToMember> MinibatchLeaderState::Due(TimePoint now) {
  std::vector<ToMember> due;
  for (uint32_t r = 0; r < members_.size(); ++r) {
    Member& member = members_[r];
    if (now < member.next_send) continue;
    member.next_send = now + limits::kTrainRepeat;
    TrainDown down{.term = term_};
    if (!member.ask) {
      if (asking_) continue;
      down.epoch = member.report->epoch;
      if (const StepDecision* step = LacksStep(member.report->record)) {
        down.what = *step;
      } else if (const AbandonDecision* abandon = LacksAbandon(member.report->record)) {
        down.what = *abandon;
        down.last_step = last_step_;
      } else {
        continue;
      }
    }
    due.push_back({.rank = TrainerRank(r), .message = std::move(down)});
  }
  return due;
}

MinibatchLeaderState::Phase MinibatchLeaderState::phase() const {
  if (broken_.has_value()) return Phase::kBroken;
  if (asking_) return Phase::kAsking;
  return step_.has_value() ? Phase::kPublishing : Phase::kOpen;
}

template <typename Condition>
std::vector<TrainerRank> MinibatchLeaderState::RanksThat(Condition condition) const {
  std::vector<TrainerRank> ranks;
  for (uint32_t r = 0; r < members_.size(); ++r) {
    if (condition(members_[r])) ranks.emplace_back(r);
  }
  return ranks;
}

MinibatchLeaderState::Waiting MinibatchLeaderState::WaitsFor() const {
  const auto first = [this](std::string_view what, auto condition) {
    return Waiting{.what = what, .ranks = RanksThat(condition), .since = since_};
  };
  switch (phase()) {
    case Phase::kBroken:
      return {.what = "a new start", .ranks = {}, .since = since_};
    case Phase::kAsking:
      return first("report", [](const Member& m) { return !m.report.has_value(); });
    case Phase::kPublishing:
      return first("publish", [](const Member&) { return true; });
    case Phase::kOpen:
      break;
  }
  // Those of the minibatch before have to publish first: the others gather that.
  for (const Waiting& waiting :
       {first("publish",
              [this](const Member& m) {
                const auto& at = m.report->record.attempt;
                return at.has_value() && at->minibatch < attempt_.minibatch;
              }),
        first("join", [this](const Member& m) { return !InAttempt(m); }),
        first("finish", [](const Member& m) { return !m.report->finished; })}) {
    if (!waiting.ranks.empty()) return waiting;
  }
  return first("seal", [](const Member& m) { return !m.report->record.sealed.has_value(); });
}

}  // namespace dws
