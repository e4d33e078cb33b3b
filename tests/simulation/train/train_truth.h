// What was pushed, decided and published in a simulated training job, kept apart from everything
// that faults can reach.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tests/simulation/train/train_node.h"

namespace dws::sim {

// The truth of all incarnations of one job.
class TrainTruth {
 public:
  explicit TrainTruth(TrainWorld& world) : world_(world) {}

  void Start(uint64_t incarnation, WeightVersion version, const std::vector<Shard>& weights);
  void Pushed(const AttemptId& attempt, UnitIndex unit, const std::vector<int64_t>& by_owner);
  void Finished(const AttemptId& attempt, TrainerRank rank, double weight);

  // An owner is sealed: its sums are exactly those of all pushes of the attempt.
  void CheckSealed(TrainerRank owner, const MemberRecord& record, const HostMemory& memory);
  // A member has received Step, with the gradient that its memory has.
  void CheckStep(TrainerRank owner, const MemberRecord& record, const HostMemory& memory);
  // A member has left attempts of the minibatch before this one without a Step.
  void Abandoned(TrainerRank owner, const AttemptId& next);
  // A rank's part of a version.
  void Published(TrainerRank rank, WeightVersion version, const Shard& weights);
  void CheckWeights(TrainerRank rank, WeightVersion version, const Shard& weights);
  const Shard& Weights(TrainerRank rank, WeightVersion version) const;

 private:
  struct Attempt {
    std::vector<Shard> sums;                 // by owner
    std::vector<std::vector<bool>> touched;  // by owner, unit
    std::map<uint32_t, double> weights;      // by rank that has finished
  };

  Attempt& At(const AttemptId& attempt);
  void ForgetLost(uint64_t minibatch);
  StepDecision Expected(const AttemptId& attempt);

  TrainWorld& world_;
  std::map<AttemptId, Attempt> attempts_;           // of this incarnation
  std::map<uint64_t, StepDecision> steps_;          // by minibatch
  std::map<uint64_t, AttemptId> abandoned_before_;  // by minibatch
  std::map<uint64_t, std::vector<Shard>> weights_;  // by version, then rank
};

}  // namespace dws::sim
