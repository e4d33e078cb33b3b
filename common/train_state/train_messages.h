// The messages of on-demand training between senders, as values. docs/on-demand.md says what they
// mean together; accumulate_state.h, outbox_state.h, minibatch_leader_state.h and
// minibatch_member_state.h say what each side does with them.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/status.h"
#include "common/base/strong_type.h"
#include "common/model/stream_id.h"
#include "common/model/weight_version.h"
#include "common/train_state/train_limits.h"

namespace dws {

// Grows with each start of the leader's sender. A member that has promised to follow one term
// ignores what earlier terms decided.
using LeaderTerm = StrongType<struct LeaderTermTag, uint64_t>;
// Counts the pushes of one rank in one attempt, from 1: the same number at every owner.
using PieceNumber = StrongType<struct PieceNumberTag, uint64_t>;
using OutboxSlot = StrongType<struct OutboxSlotTag, uint32_t>;

// Names a training job that runs. Each message carries it; a shell may send it once for each
// connection.
struct TrainingJob {
  std::string job_id;
  StreamId stream;  // the incarnation
  uint32_t world_size = 0;

  friend bool operator==(const TrainingJob&, const TrainingJob&) = default;
};

// One try at one minibatch. Minibatches count from 1 in each incarnation. Attempts count from 1 in
// each minibatch and term of the leader that opened them, so no leader opens one a second time.
struct AttemptId {
  uint64_t minibatch = 0;
  LeaderTerm term;
  uint32_t attempt = 0;

  friend auto operator<=>(const AttemptId&, const AttemptId&) = default;
};
// "minibatch 7 attempt 2 of term 5"
inline std::string ToString(const AttemptId& id) {
  return fmt::format("minibatch {} attempt {} of term {}", id.minibatch, id.attempt,
                     id.term.value());
}
// What all ranks open when they have let go of the gradient of `decided`.
inline AttemptId FirstAttemptAfter(const AttemptId& decided) {
  return {.minibatch = decided.minibatch + 1, .term = decided.term, .attempt = 1};
}

// What an owner has when all pieces of all ranks are added.
struct SealedGradient {
  double sum_squares = 0;  // of its elements; 0 unless finite
  double weight = 0;       // the sum over all ranks, in rank order
  bool finite = true;
  bool exact = false;  // no addition was rounded, as far as that was watched

  friend bool operator==(const SealedGradient&, const SealedGradient&) = default;
};

// The decision that a minibatch counts.
struct StepDecision {
  AttemptId attempt;
  double norm = 0;  // of the whole gradient; 0 unless finite
  double weight = 0;
  bool finite = true;  // false: all skip the step, and the version stays

  friend bool operator==(const StepDecision&, const StepDecision&) = default;
};
// The decision that all attempts of the minibatch before `next` are void.
struct AbandonDecision {
  AttemptId next;
  std::string reason;
  std::optional<TrainerRank> rank;  // that caused it

  friend bool operator==(const AbandonDecision&, const AbandonDecision&) = default;
};

// Leader to member.
//
// Asks for a report, and for the promise to follow no earlier term.
struct TrainAsk {};
struct TrainDown {
  LeaderTerm term;
  RankEpoch epoch;  // of the report that it answers: the member's next process ignores a decision
  std::variant<TrainAsk, StepDecision, AbandonDecision> what;
  // The step of the minibatch before. A member that joins late keeps it for a leader that starts
  // again.
  std::optional<StepDecision> last_step;
};

// Where a rank is. Rank and sender both map it, so that it outlives one of them.
struct MemberRecord {
  LeaderTerm term;        // promised
  WeightVersion version;  // published
  // None: it has not joined yet.
  std::optional<AttemptId> attempt;
  std::optional<SealedGradient> sealed;   // of `attempt`
  std::optional<StepDecision> step;       // of `attempt`; the gradient is kept until it is let go
  std::optional<StepDecision> last_step;  // of the minibatch before

  friend bool operator==(const MemberRecord&, const MemberRecord&) = default;
};

// Member to leader: its whole state, sent when it changes and every limits::kTrainRepeat.
struct TrainReport {
  RankEpoch epoch;        // of the sender's process
  uint64_t sequence = 0;  // grows with each change in one epoch
  MemberRecord record;
  bool finished = false;  // its rank has pushed all of the attempt
  // Why the attempt cannot or shall not be completed; empty: it can.
  std::string lost;
  std::optional<TrainerRank> lost_rank;  // that caused it
};

// Where pieces of a rank for one owner go: to the owner itself, or to a combiner, a sender on the
// rank's host that adds up the host's pieces and sends the owner their sum.
struct PieceRoute {
  TrainerRank to;
  TrainerRank owner;

  friend auto operator<=>(const PieceRoute&, const PieceRoute&) = default;
};
inline PieceRoute DirectTo(TrainerRank owner) { return {.to = owner, .owner = owner}; }

// Between the sender of a rank that pushes, and the owner of a shard, or a combiner. Messages of
// two routes say nothing of each other.
struct PieceOffer {
  AttemptId attempt;
  PieceNumber number;
  UnitIndex unit;
  OutboxSlot slot;

  friend bool operator==(const PieceOffer&, const PieceOffer&) = default;
};
struct PiecePull {
  AttemptId attempt;
  PieceNumber number;
};
// Pieces up to this one are added.
struct PieceAck {
  AttemptId attempt;
  PieceNumber through;
};
// Offer from this one on again.
struct PieceWanted {
  AttemptId attempt;
  PieceNumber from;
};
// Follows the last piece.
struct PushFinish {
  AttemptId attempt;
  uint64_t count = 0;
  double weight = 0;

  friend bool operator==(const PushFinish&, const PushFinish&) = default;
};
struct FinishAck {
  AttemptId attempt;
};
// A combiner asks a rank of its host for the pieces of these units that are for an owner elsewhere,
// until the rank's Finish for that owner has come to the combiner.
struct CombineRequest {
  AttemptId attempt;
  TrainerRank owner;
  std::vector<bool> units;  // by unit; those after the last one are not meant
};

// OK if a message of job `theirs` from `from` is for a sender of job `mine`. FAILED_PRECONDITION
// names what differs: job, incarnation or world size. INVALID_ARGUMENT: the job has no such rank.
Status CheckJob(const TrainingJob& mine, const TrainingJob& theirs, TrainerRank from);

// INVALID_ARGUMENT if the parts of the message contradict each other, or a number is out of range.
Status Validate(const MemberRecord& record);
Status Validate(const TrainDown& down);
Status Validate(const TrainReport& report);
// INVALID_ARGUMENT if a number is out of range.
Status Validate(const CombineRequest& request);

}  // namespace dws
