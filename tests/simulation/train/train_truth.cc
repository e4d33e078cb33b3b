// Gradients are whole numbers, so sums are exact in any order, and chosen at random, so a piece
// that is missing or added twice shows.
#include "tests/simulation/train/train_truth.h"

#include <cmath>

#include "tests/simulation/train/train_world.h"

namespace dws::sim {

void TrainTruth::Start(uint64_t incarnation, WeightVersion version,
                       const std::vector<Shard>& weights) {
  world_.Trace("incarnation {} starts from version {}", incarnation, version.value());
  attempts_.clear();
  steps_.clear();
  abandoned_before_.clear();
  weights_.erase(weights_.upper_bound(version.value()), weights_.end());
  weights_[version.value()] = weights;
}

TrainTruth::Attempt& TrainTruth::At(const AttemptId& attempt) {
  Attempt& found = attempts_[attempt];
  found.sums.resize(world_.ranks, Shard(world_.units));
  found.touched.resize(world_.ranks, std::vector<bool>(world_.units));
  return found;
}

void TrainTruth::Pushed(const AttemptId& attempt, UnitIndex unit,
                        const std::vector<int64_t>& by_owner) {
  Attempt& at = At(attempt);
  for (uint32_t o = 0; o < world_.ranks; ++o) {
    at.sums[o][unit.value()] += by_owner[o];
    at.touched[o][unit.value()] = true;
  }
}

void TrainTruth::Finished(const AttemptId& attempt, TrainerRank rank, double weight) {
  At(attempt).weights[rank.value()] = weight;
}

void TrainTruth::CheckSealed(TrainerRank owner, const MemberRecord& record,
                             const HostMemory& memory) {
  Attempt& at = At(*record.attempt);
  if (at.weights.size() != world_.ranks) {
    return world_.Violate("rank {} is sealed in {} when {} of {} ranks have finished",
                          owner.value(), ToString(*record.attempt), at.weights.size(),
                          world_.ranks);
  }
  for (uint32_t u = 0; u < world_.units; ++u) {
    const bool same = at.touched[owner.value()][u] == memory.touched[u] &&
                      (!memory.touched[u] || at.sums[owner.value()][u] == memory.sums[u]);
    if (same) continue;
    return world_.Violate("rank {} is sealed in {} with {} in unit {}, not the sum {}",
                          owner.value(), ToString(*record.attempt), memory.sums[u], u,
                          at.sums[owner.value()][u]);
  }
}

StepDecision TrainTruth::Expected(const AttemptId& attempt) {
  const Attempt& at = At(attempt);
  StepDecision step{.attempt = attempt};
  double sum_squares = 0;
  for (const Shard& sums : at.sums) {
    for (const int64_t sum : sums) {
      step.finite = step.finite && sum < kInfinity / 2;
      sum_squares += static_cast<double>(sum) * static_cast<double>(sum);
    }
  }
  if (step.finite) step.norm = std::sqrt(sum_squares);
  for (const auto& [rank, weight] : at.weights) step.weight += weight;
  return step;
}

// A decision whose every holder is lost, with its host, was never one: no weights came from it.
void TrainTruth::ForgetLost(uint64_t minibatch) {
  const auto step = steps_.find(minibatch);
  if (step == steps_.end()) return;
  for (const auto& memory : world_.memories) {
    if (!memory->record.has_value()) continue;
    const MemberRecord& record = *memory->record;
    if (record.step == step->second || record.last_step == step->second) return;
  }
  world_.See("a decision is lost with all who knew it");
  steps_.erase(step);
}

void TrainTruth::CheckStep(TrainerRank owner, const MemberRecord& record,
                           const HostMemory& memory) {
  const StepDecision& step = *record.step;
  ForgetLost(step.attempt.minibatch);
  const auto [first, is_new] = steps_.try_emplace(step.attempt.minibatch, step);
  if (first->second != step) {
    return world_.Violate("two decisions: rank {} has Step of {}, another rank Step of {}",
                          owner.value(), ToString(step.attempt), ToString(first->second.attempt));
  }
  const auto abandoned = abandoned_before_.find(step.attempt.minibatch);
  if (abandoned != abandoned_before_.end() && step.attempt < abandoned->second) {
    return world_.Violate("two decisions: rank {} has Step of {}, which another rank has abandoned",
                          owner.value(), ToString(step.attempt));
  }
  if (is_new) {
    ++world_.steps;
    world_.See(step.finite ? "a step is decided" : "a gradient is not finite");
    if (step != Expected(step.attempt)) {
      return world_.Violate("Step of {} has norm {} and weight {}, not {} and {}",
                            ToString(step.attempt), step.norm, step.weight,
                            Expected(step.attempt).norm, Expected(step.attempt).weight);
    }
  }
  CheckSealed(owner, record, memory);
}

void TrainTruth::Abandoned(TrainerRank owner, const AttemptId& next) {
  ForgetLost(next.minibatch);
  AttemptId& before = abandoned_before_[next.minibatch];
  before = std::max(before, next);
  const auto step = steps_.find(next.minibatch);
  if (step == steps_.end() || step->second.attempt >= next) return;
  world_.Violate("two decisions: rank {} abandons {}, another rank has its Step", owner.value(),
                 ToString(step->second.attempt));
}

void TrainTruth::Published(TrainerRank rank, WeightVersion version, const Shard& weights) {
  if (!weights_.contains(version.value())) {
    // From the last step's sums, for all ranks at once.
    std::vector<Shard> next = weights_.at(version.value() - 1);
    const Attempt& at = At(steps_.rbegin()->second.attempt);
    for (uint32_t r = 0; r < world_.ranks; ++r) {
      for (uint32_t u = 0; u < world_.units; ++u) next[r][u] += at.sums[r][u];
    }
    weights_[version.value()] = std::move(next);
  }
  CheckWeights(rank, version, weights);
}

void TrainTruth::CheckWeights(TrainerRank rank, WeightVersion version, const Shard& weights) {
  const auto found = weights_.find(version.value());
  if (found != weights_.end() && found->second[rank.value()] == weights) return;
  world_.Violate("rank {} has weights that are not version {}", rank.value(), version.value());
}

const Shard& TrainTruth::Weights(TrainerRank rank, WeightVersion version) const {
  return weights_.at(version.value()).at(rank.value());
}

}  // namespace dws::sim
