// Where one rank is between two versions, as its own sender knows it: which attempt is open,
// whether its shard's gradient is sealed, what was decided, what is published. No I/O, no clock, no
// threads: the sender feeds it, keeps its record and carries out what it says.
//
// Rules (docs/on-demand.md, one decision a minibatch):
//  1. The record is mapped by rank and sender. It is written before the report that tells of it is
//     sent, so what a leader was told outlives one of the two.
//  2. A member follows the highest term that it has promised, and no earlier one.
//  3. A decision of an attempt is received once. Step needs the sealed gradient. Abandon ends all
//     attempts of the minibatch before the one it names.
//  4. A sender that starts again within an attempt does not know what its rank has pushed, and a
//     rank that does, not what it computed: the attempt is lost unless Step was decided. Only the
//     leader ends it.
//  5. After Step nothing ends the minibatch but this rank's publication of the next version, or, if
//     the gradient is not finite, its skip.
//  6. A sender without a record joins with the next attempt of the version that its rank has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/train_state/train_messages.h"

namespace dws {

// Lifecycle: lives as long as the sender's process. Threads: one at a time.
class MinibatchMemberState {
 public:
  enum class Phase : uint8_t {
    kJoining,      // the leader has not named an attempt yet
    kOpen,         // pieces are pushed and added
    kLost,         // as kOpen, but it cannot be completed: waits for the leader to end it
    kSealed,       // waits for the decision
    kStepped,      // the rank has to publish the next version
    kToBeSkipped,  // the rank has to skip the step
  };

  // `epoch`: grows with each start in one incarnation of the job. `record`: what rank and sender
  // still map of this incarnation; none: nothing. An attempt that is not decided is lost (rule 4).
  MinibatchMemberState(TrainerRank rank, RankEpoch epoch, std::optional<MemberRecord> record);

  // A message of the leader. FAILED_PRECONDITION: of a term before the promised one, for an earlier
  // process of this sender, or in contradiction to what is known here; nothing is decided.
  // INVALID_ARGUMENT: see Validate. OK also if it is known already.
  Status OnDown(const TrainDown& down);

  // Its rank is connected and holds this version. FAILED_PRECONDITION: the record is of another
  // one.
  Status OnRank(WeightVersion version);
  // The rank's socket has closed. `process` names it for people, as "pid 7 on host-a".
  void OnRankLost(std::string_view process = "");
  // The rank, or this sender for its rank, cannot go on with the attempt. ABORTED: it is over.
  // FAILED_PRECONDITION: Step is decided.
  Status AskToAbandon(const AttemptId& attempt, std::string_view reason,
                      std::optional<TrainerRank> because_of);
  // The rank has pushed everything. ABORTED: the attempt is over, or lost.
  Status OnFinished(const AttemptId& attempt);
  // The owner's accumulators have all of the attempt. ABORTED: it is over, or lost.
  Status OnSealed(const AttemptId& attempt, const SealedGradient& sealed);
  // The rank's part of the next version is published: to be called in the same step. The gradient
  // is let go, and the next minibatch opens. FAILED_PRECONDITION: that is not what was decided;
  // nothing may be published.
  Status OnPublished(uint64_t minibatch, WeightVersion version);
  // OK: so would OnPublished be.
  Status MayPublish(uint64_t minibatch, WeightVersion version) const;
  // The rank skips the step. Codes as OnPublished.
  Status OnSkipped(uint64_t minibatch);

  // Something has changed since the last call: write record(), then send Report(), and open
  // record().attempt if that is another one.
  bool TakeChanged();
  // None: there is nothing to report, because the rank of a sender without a record is not here.
  std::optional<TrainReport> Report() const;

  Phase phase() const;
  const MemberRecord& record() const { return record_; }
  bool rank_present() const { return rank_present_; }
  // Pieces of record().attempt may be pushed.
  bool open() const { return phase() == Phase::kOpen && rank_present_; }
  // What it waits for, and for whom, in words.
  std::string WaitsFor() const;

 private:
  Status Follow(LeaderTerm term);
  Status Obey(const StepDecision& step);
  Status Obey(const AbandonDecision& abandon, const std::optional<StepDecision>& last_step);
  Status MayEnd(uint64_t minibatch, bool finite) const;
  void OpenNext(WeightVersion version);
  void Change() { changed_ = true, ++sequence_; }
  void Lose(std::string_view reason, std::optional<TrainerRank> because_of);
  bool Undecided() const { return record_.attempt.has_value() && !record_.step.has_value(); }

  TrainerRank rank_;
  RankEpoch epoch_;
  MemberRecord record_;
  uint64_t sequence_ = 0;
  bool changed_ = false;
  bool rank_present_ = false;
  bool finished_ = false;
  std::string lost_;
  std::optional<TrainerRank> lost_rank_;
};

}  // namespace dws
