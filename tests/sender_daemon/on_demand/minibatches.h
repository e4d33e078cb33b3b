// Minibatches of a cluster, whose sums are known.
#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "tests/sender_daemon/on_demand/train_cluster.h"

namespace dws {

using Gradients = std::vector<std::vector<float>>;  // by owner

// Shards of three units: uneven, and some empty.
inline ClusterOptions Uneven(uint32_t ranks) {
  ClusterOptions options{.ranks = ranks};
  for (uint32_t r = 0; r < ranks; ++r) {
    options.shards.push_back({70'000 + 17 * r, r == 1 ? 0U : 33U, 5 + r});
  }
  return options;
}

// Whole numbers, so that every order gives the same sum, and BF16 holds them.
class Model {
 public:
  Model(const ClusterOptions& options, uint64_t seed) : options_(options), random_(seed) {
    Clear();
  }
  void Clear() {
    sums_.clear();
    for (const auto& shard : options_.shards) {
      auto& units = sums_.emplace_back();
      for (const uint64_t elements : shard) units.emplace_back(elements);
    }
  }
  Gradients Draw(uint32_t unit) {
    Gradients by_owner;
    for (uint32_t o = 0; o < options_.ranks; ++o) {
      std::vector<float>& piece = by_owner.emplace_back(options_.shards[o][unit]);
      for (size_t e = 0; e < piece.size(); ++e) {
        piece[e] = static_cast<float>(static_cast<int>(random_() % 129) - 64);
        sums_[o][unit][e] += piece[e];
      }
    }
    return by_owner;
  }
  const std::vector<float>& Sum(uint32_t owner, uint32_t unit) const { return sums_[owner][unit]; }
  double Norm() const {
    double squares = 0;
    for (const auto& units : sums_) {
      for (const auto& unit : units) {
        for (const float element : unit) squares += double{element} * element;
      }
    }
    return std::sqrt(squares);
  }

 private:
  const ClusterOptions options_;
  std::mt19937_64 random_;
  std::vector<std::vector<std::vector<float>>> sums_;  // by owner, by unit
};

// Every rank pushes some microbatches of all units, rank 1 none.
inline void PushAll(TrainCluster& cluster, Model& model, uint64_t minibatch) {
  model.Clear();
  const uint32_t ranks = cluster.options().ranks;
  std::vector<std::vector<std::pair<uint32_t, Gradients>>> pushes(ranks);
  for (uint32_t r = 0; r < ranks; ++r) {
    for (uint32_t micro = 0; micro < (r == 1 ? 0 : 1 + r); ++micro) {
      for (const uint32_t unit : {2U, 0U, 1U}) pushes[r].emplace_back(unit, model.Draw(unit));
    }
  }
  std::vector<std::thread> processes;
  for (uint32_t r = 0; r < ranks; ++r) {
    processes.emplace_back([&, r] {
      TrainRank& rank = cluster.rank(r);
      do {
        rank.AwaitOpen(minibatch);
        for (const auto& [unit, by_owner] : pushes[r]) DWS_CHECK(rank.Push(unit, by_owner));
        const Status finished = rank.Finish(1.5);
        DWS_CHECK(finished.ok() || absl::IsAborted(finished));
      } while (!rank.AwaitEnd());  // as a rank's process, again if the attempt is abandoned
    });
  }
  for (std::thread& process : processes) process.join();
}

inline void CheckStep(TrainCluster& cluster, const Model& model) {
  for (uint32_t r = 0; r < cluster.options().ranks; ++r) {
    const v1::MinibatchView view = cluster.rank(r).AwaitStep();
    CHECK(view.step().finite());
    CHECK(view.step().weight() == 1.5 * cluster.options().ranks);
    CHECK(view.step().norm() == Approx(model.Norm()).epsilon(1e-12));
    CHECK(view.exact() == cluster.options().exact);
    for (uint32_t unit = 0; unit < 3; ++unit) {
      CHECK((cluster.rank(r).Gradient(unit) == model.Sum(r, unit)));
    }
  }
}

// A minibatch up to its decision.
inline void StepAll(TrainCluster& cluster, Model& model, uint64_t minibatch) {
  PushAll(cluster, model, minibatch);
  CheckStep(cluster, model);
}

inline void PublishAll(TrainCluster& cluster, uint64_t version) {
  for (uint32_t r = 0; r < cluster.options().ranks; ++r) {
    CHECK(cluster.rank(r).Publish(version).ok());
  }
}

}  // namespace dws
