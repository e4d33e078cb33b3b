#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <thread>

#include "tests/sender_daemon/on_demand/train_cluster.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;
using Gradients = std::vector<std::vector<float>>;  // by owner

// Shards of three units: uneven, and some empty.
ClusterOptions Uneven(uint32_t ranks) {
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
void PushAll(TrainCluster& cluster, Model& model, uint64_t minibatch) {
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

void CheckStep(TrainCluster& cluster, const Model& model) {
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

void PublishAll(TrainCluster& cluster, uint64_t version) {
  for (uint32_t r = 0; r < cluster.options().ranks; ++r) {
    CHECK(cluster.rank(r).Publish(version).ok());
  }
}

}  // namespace

TEST_CASE("every owner has the sum of all pieces, and all ranks the same decision", "[minibatch]") {
  ClusterOptions options = Uneven(GENERATE(1U, 2U, 4U));
  options.exact = GENERATE(false, true);
  options.dtype = GENERATE(DType::kF32, DType::kBF16);
  options.same_host = GENERATE(true, false);
  INFO(options.ranks << " ranks, exact " << options.exact << ", " << ToString(options.dtype)
                     << ", one host " << options.same_host);
  TrainCluster cluster(options);
  Model model(options, Catch::rngSeed());
  cluster.JoinAll();
  for (uint64_t minibatch = 1; minibatch <= 3; ++minibatch) {
    PushAll(cluster, model, minibatch);
    CheckStep(cluster, model);
    PublishAll(cluster, minibatch + 1);
  }
}

TEST_CASE("nothing is published before Step, nor twice, nor another version", "[minibatch]") {
  TrainCluster cluster(Uneven(2));
  Model model(cluster.options(), 1);
  cluster.JoinAll();
  CHECK_THAT(ToString(cluster.rank(0).Publish(2)),
             Contains("the job has not begun") || Contains("minibatch 1 of rank 0 is not"));
  PushAll(cluster, model, 1);
  CheckStep(cluster, model);
  CHECK_THAT(ToString(cluster.rank(0).Publish(3)), Contains("minibatch 1 leads from 1 to 2"));
  CHECK(cluster.rank(0).Publish(2).ok());
  CHECK_THAT(ToString(cluster.rank(0).Publish(3)),
             Contains("minibatch 2 of rank 0 is not decided"));
}

TEST_CASE("a rank that is gone is named by all, and its minibatch is done again", "[minibatch]") {
  TrainCluster cluster(Uneven(3));
  Model model(cluster.options(), Catch::rngSeed());
  cluster.JoinAll();
  cluster.rank(2).AwaitOpen(1);
  model.Clear();
  CHECK(cluster.rank(2).Push(0, model.Draw(0)));
  cluster.rank(2).Leave();
  for (const uint32_t r : {0U, 1U}) {
    const v1::MinibatchView view = cluster.rank(r).Await([](const v1::MinibatchView& now) {
      return now.abandoned().rank() == 2 && now.phase() == v1::MinibatchView::PHASE_OPEN;
    });
    CHECK_THAT(view.abandoned().reason(), Contains("the process of rank 2, pid 7 is gone"));
  }
  cluster.ReplaceRank(2);
  CHECK_THAT(ToString(cluster.rank(2).Join(cluster.sender(2).engine(), 2)),
             Contains("holds version 2, and version 1 is published"));
  REQUIRE(cluster.rank(2).Join(cluster.sender(2).engine(), 1).ok());
  PushAll(cluster, model, 1);
  CheckStep(cluster, model);
}

TEST_CASE("a rank that is gone after Step finds its gradient when it is back", "[minibatch]") {
  TrainCluster cluster(Uneven(2));
  Model model(cluster.options(), Catch::rngSeed());
  cluster.JoinAll();
  PushAll(cluster, model, 1);
  CheckStep(cluster, model);
  CHECK(cluster.rank(0).Publish(2).ok());
  cluster.rank(1).Leave();
  cluster.ReplaceRank(1);
  REQUIRE(cluster.rank(1).Join(cluster.sender(1).engine(), 1).ok());
  cluster.rank(1).AwaitStep();
  for (uint32_t unit = 0; unit < 3; ++unit) {
    CHECK((cluster.rank(1).Gradient(unit) == model.Sum(1, unit)));
  }
  CHECK(cluster.rank(1).Publish(2).ok());
  PushAll(cluster, model, 2);
  CheckStep(cluster, model);
}

TEST_CASE("a sender that starts again goes on from the rank's memory", "[minibatch]") {
  TrainCluster cluster(Uneven(2));
  Model model(cluster.options(), Catch::rngSeed());
  cluster.JoinAll();
  const uint32_t rank = GENERATE(0U, 1U);
  SECTION("before Step the minibatch is done again") {
    cluster.rank(0).AwaitOpen(1);
    cluster.rank(1).AwaitOpen(1);
    CHECK(cluster.rank(rank).Push(0, model.Draw(0)));
    cluster.RestartSender(rank);
    REQUIRE(cluster.rank(rank).Join(cluster.sender(rank).engine(), 1).ok());
    PushAll(cluster, model, 1);
    CheckStep(cluster, model);
    PublishAll(cluster, 2);
  }
  SECTION("after Step the rank steps") {
    PushAll(cluster, model, 1);
    CheckStep(cluster, model);
    cluster.RestartSender(rank);
    REQUIRE(cluster.rank(rank).Join(cluster.sender(rank).engine(), 1).ok());
    cluster.rank(rank).AwaitStep();
    CheckStep(cluster, model);
    PublishAll(cluster, 2);
  }
  PushAll(cluster, model, 2);
  CheckStep(cluster, model);
}

TEST_CASE("a gradient that is not finite is skipped by all", "[minibatch]") {
  TrainCluster cluster(Uneven(2));
  Model model(cluster.options(), 1);
  cluster.JoinAll();
  for (const uint32_t r : {0U, 1U}) cluster.rank(r).AwaitOpen(1);
  Gradients by_owner = model.Draw(2);
  by_owner[1][3] = std::nanf("");
  CHECK(cluster.rank(0).Push(2, by_owner));
  for (const uint32_t r : {0U, 1U}) CHECK(cluster.rank(r).Finish(1).ok());
  for (const uint32_t r : {0U, 1U}) {
    CHECK_FALSE(cluster.rank(r).AwaitStep().step().finite());
    CHECK_THAT(ToString(cluster.rank(r).Publish(2)), Contains("not finite"));
    CHECK(cluster.rank(r).Skip().ok());
  }
  PushAll(cluster, model, 2);
  CheckStep(cluster, model);
  PublishAll(cluster, 2);
}

TEST_CASE("what a rank cannot push is refused by name, and the attempt ends", "[minibatch]") {
  TrainCluster cluster(Uneven(2));
  Model model(cluster.options(), 1);
  cluster.JoinAll();
  for (const uint32_t r : {0U, 1U}) cluster.rank(r).AwaitOpen(1);
  std::string why;
  SECTION("a piece of another size") {
    Gradients by_owner = model.Draw(2);
    by_owner[1].pop_back();
    CHECK(cluster.rank(0).Push(2, by_owner));
    why = "gradients of unit u2: expected 24 bytes, 6 elements of F32, found 20";
  }
  SECTION("a push out of order") {
    for (const uint32_t slot : {0U, 1U}) {
      cluster.rank(0).Fill({.slot = slot, .owner = slot, .dtype = DType::kF32, .number = 0});
    }
    why = "a piece of push 0 for owner 0, of unit 0: push 1 is the next";
  }
  SECTION("a unit that does not exist") {
    cluster.rank(0).Fill({.slot = 0, .unit = 3, .dtype = DType::kF32, .number = 1});
    why = "found unit 3 for owner 0";
  }
  SECTION("the rank asks for it") {
    CHECK(cluster.rank(0).Abandon("a user's exception").ok());
    why = "a user's exception";
  }
  for (const uint32_t r : {0U, 1U}) {
    const v1::MinibatchView view = cluster.rank(r).Await(
        [](const v1::MinibatchView& now) { return now.abandoned().next().attempt() > 1; });
    CHECK(view.abandoned().rank() == 0);
    CHECK_THAT(view.abandoned().reason(), Contains(why));
  }
}

TEST_CASE("ranks with other units or another world are refused by name", "[minibatch]") {
  TrainCluster cluster(Uneven(2));
  REQUIRE(cluster.rank(0).Join(cluster.sender(0).engine(), 1).ok());
  REQUIRE(cluster.rank(1)
              .Join(cluster.sender(1).engine(), 1,
                    [](JoinOrder& order) { order.units[1].tensors.push_back("more"); })
              .ok());
  CHECK_THAT(cluster.rank(0)
                 .Await([](const v1::MinibatchView& now) {
                   return now.waits_for().find("other units") != std::string::npos;
                 })
                 .waits_for(),
             Contains("rank 1 has other units than rank 0"));
}

}  // namespace dws
