// A simulated rank: computes microbatches, pushes their gradients, waits for the decision, steps
// and publishes.
#pragma once

#include <optional>
#include <string>

#include "tests/simulation/train/train_node.h"

namespace dws::sim {

// What its sender tells a rank: the state, again with each change.
struct RankView {
  std::optional<AttemptId> attempt;
  bool open = false;  // pieces may be pushed
  std::optional<StepDecision> step;
};

class RankNode final : public TrainNode {
 public:
  RankNode(TrainWorld& world, uint32_t site, TrainerRank rank);

  void OnView(uint64_t session, const RankView& view);
  void OnSenderGone(uint64_t session);

 private:
  void OnStart() override;
  void OnCrash() override;
  void Connect();
  bool LoadWeights();
  void Begin(const AttemptId& attempt);
  void Compute(uint64_t work, uint32_t pushes);
  bool CanGather();
  void PushOne(uint64_t work, uint32_t pushes);
  void End(uint64_t work);
  void Step(const StepDecision& step);
  void Publish(const StepDecision& step, const Shard& next);

  std::optional<WeightVersion> version_;
  Shard weights_;
  std::optional<uint64_t> session_;  // of the connection to its sender
  AttemptId attempt_;                // the last that it began
  uint64_t stepped_ = 0;             // the last minibatch whose step it has begun
  uint64_t work_ = 0;                // another number ends the work in progress
  double weight_ = 0;
};

}  // namespace dws::sim
