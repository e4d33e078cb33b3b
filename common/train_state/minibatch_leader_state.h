// Decides each attempt of each minibatch once, for all ranks: Step or Abandon. The leader is the
// sender of rank 0. No I/O, no clock, no threads: the sender feeds it and sends what is due.
//
// Rules (docs/on-demand.md, one decision a minibatch):
//  1. Members report their whole state, again and again. What they lack is sent until a report
//     shows that they have it.
//  2. Step when all ranks of the attempt are sealed. Abandon if before that a rank or sender of the
//     attempt is lost, or a member asks for it. Nothing else changes weights.
//  3. A leader that starts asks all. Each report promises to follow no earlier term. When all have
//     reported: if one knows a Step of the newest minibatch, that is decided; else its attempts are
//     abandoned. It never guesses from a part of the reports.
//  4. Only who is in the attempt can be lost in it: a peer that is silent or away is waited for by
//     name in the next one. A slow rank is waited for by name, and never taken for dead.
//  5. Versions: a finite Step leads from v to v + 1, any other from v to v. A member without a
//     record joins if its rank holds what the minibatch starts from. If it lacks a gradient that
//     Step needs, the job has to start again, and that is said by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/train_state/train_messages.h"

namespace dws {

// Lifecycle: lives as long as the leader's process. Threads: one at a time.
class MinibatchLeaderState {
 public:
  enum class Phase : uint8_t {
    kAsking,      // for all reports (rule 3)
    kOpen,        // an attempt
    kPublishing,  // Step is decided, and no member has let go of the gradient yet
    kBroken,      // see broken()
  };
  struct ToMember {
    TrainerRank rank;
    TrainDown message;
  };
  // The ranks that all others wait for.
  struct Waiting {
    std::string_view what;  // "report", "join", "finish", "seal", "publish", or "a new start"
    std::vector<TrainerRank> ranks;  // ascending
    TimePoint since;
  };

  // `term`: above that of every earlier leader of this incarnation. `peer_timeout`: see Tick.
  MinibatchLeaderState(uint32_t ranks, LeaderTerm term, Duration peer_timeout, TimePoint now);

  // FAILED_PRECONDITION: of a member that follows a later leader. INVALID_ARGUMENT: no such rank,
  // or see Validate. A late or repeated report changes nothing, and is OK.
  Status OnReport(TrainerRank rank, const TrainReport& report, TimePoint now);
  // The last stream from the sender of this rank has ended; one that another has replaced does not
  // count.
  void OnDisconnect(TrainerRank rank, TimePoint now);
  // To be called every limits::kTrainRepeat. Abandons the attempt if one of its senders has been
  // silent for `peer_timeout`. If the last call is half of that ago, it was the leader's own
  // process that stood still, and nobody is blamed for the time until now.
  void Tick(TimePoint now);
  // What to send now: at once after a change, then every limits::kTrainRepeat.
  std::vector<ToMember> Due(TimePoint now);

  Phase phase() const;
  const AttemptId& attempt() const { return attempt_; }
  const std::optional<StepDecision>& step() const { return step_; }
  const std::optional<AbandonDecision>& last_abandon() const { return abandon_; }
  // Why no decision is possible: the job has to start again from a checkpoint.
  const std::optional<std::string>& broken() const { return broken_; }
  Waiting WaitsFor() const;
  // Attempts that were abandoned; the start of the job is one.
  uint64_t abandoned() const { return abandoned_; }

 private:
  struct Member {
    std::optional<TrainReport> report;  // with the promise of this term
    bool ask = true;                    // its process has not promised yet
    TimePoint heard = {};
    TimePoint next_send = {};
  };

  bool InAttempt(const Member& member) const;
  void Advance(TrainerRank rank, TimePoint now);
  void Recover(TimePoint now);
  void AdoptNewest(TimePoint now);
  void Join(TrainerRank rank, TimePoint now);
  void AbandonForJoin(TrainerRank rank, TimePoint now);
  void MoveOn(TimePoint now);
  void DecideIfSealed(TimePoint now);
  void Abandon(std::string_view reason, std::optional<TrainerRank> rank, TimePoint now);
  void SendAll(TimePoint now);
  // Null: there is nothing to tell it.
  const StepDecision* LacksStep(const MemberRecord& record) const;
  const AbandonDecision* LacksAbandon(const MemberRecord& record) const;
  template <typename Condition>
  std::vector<TrainerRank> RanksThat(Condition condition) const;

  const LeaderTerm term_;
  const Duration peer_timeout_;
  TimePoint last_tick_;
  std::vector<Member> members_;
  bool asking_ = true;
  AttemptId attempt_;
  WeightVersion version_;                   // that its minibatch starts from
  std::optional<StepDecision> step_;        // of attempt_
  std::optional<StepDecision> last_step_;   // of the minibatch before
  std::optional<AbandonDecision> abandon_;  // of the attempts before attempt_
  std::optional<std::string> broken_;
  TimePoint since_;  // when attempt_ was opened, or decided
  uint64_t abandoned_ = 0;
};

}  // namespace dws
