#include <catch2/catch.hpp>
#include <cmath>

#include "tests/fakes/eventually.h"
#include "tests/sender_daemon/on_demand/minibatches.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;

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
    StepAll(cluster, model, minibatch);
    PublishAll(cluster, minibatch + 1);
  }
}

TEST_CASE("nothing is published before Step, nor twice, nor another version", "[minibatch]") {
  TrainCluster cluster(Uneven(2));
  Model model(cluster.options(), 1);
  cluster.JoinAll();
  CHECK_THAT(ToString(cluster.rank(0).Publish(2)),
             Contains("the job has not begun") || Contains("minibatch 1 of rank 0 is not"));
  StepAll(cluster, model, 1);
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
  StepAll(cluster, model, 1);
}

TEST_CASE("what others push while a rank is away is in the gradient of its next process",
          "[minibatch]") {
  TrainCluster cluster(Uneven(2));
  Model model(cluster.options(), Catch::rngSeed());
  cluster.JoinAll();
  const uint32_t away = GENERATE(0U, 1U);
  TrainRank& other = cluster.rank(1 - away);
  cluster.rank(away).AwaitOpen(1);
  other.AwaitOpen(1);
  cluster.rank(away).Leave();
  other.AwaitOpen(1);  // the next attempt
  model.Clear();
  for (const uint32_t unit : {0U, 2U}) CHECK(other.Push(unit, model.Draw(unit)));
  CHECK(other.Finish(1.5).ok());
  // When its own owner has added them, the one that is away might have, too.
  REQUIRE(Eventually([&] {
    return other.Gradient(0) == model.Sum(1 - away, 0) &&
           other.Gradient(2) == model.Sum(1 - away, 2);
  }));
  cluster.ReplaceRank(away);
  REQUIRE(cluster.rank(away).Join(cluster.sender(away).engine(), 1).ok());
  cluster.rank(away).AwaitOpen(1);
  CHECK(cluster.rank(away).Push(1, model.Draw(1)));
  CHECK(cluster.rank(away).Finish(1.5).ok());
  CheckStep(cluster, model);
}

TEST_CASE("a rank that comes back with other shards is refused", "[minibatch]") {
  TrainCluster cluster(Uneven(2));
  cluster.JoinAll();
  CHECK_THAT(ToString(cluster.rank(0).Join(cluster.sender(0).engine(), 1,
                                           [](JoinOrder& order) {
                                             // Less, and as much together.
                                             order.shards[2].elements = 4;
                                           })),
             Contains("joins again with other units"));
  cluster.rank(0).AwaitOpen(1);
}

TEST_CASE("a rank that has published when its sender dies goes on from there", "[minibatch]") {
  TrainCluster cluster(Uneven(2));
  Model model(cluster.options(), Catch::rngSeed());
  cluster.JoinAll();
  StepAll(cluster, model, 1);
  cluster.RestartSender(1);
  REQUIRE(cluster.rank(1).Join(cluster.sender(1).engine(), 2).ok());
  CHECK(cluster.rank(0).Publish(2).ok());
  StepAll(cluster, model, 2);
}

TEST_CASE("a rank that is gone after Step finds its gradient when it is back", "[minibatch]") {
  TrainCluster cluster(Uneven(2));
  Model model(cluster.options(), Catch::rngSeed());
  cluster.JoinAll();
  StepAll(cluster, model, 1);
  CHECK(cluster.rank(0).Publish(2).ok());
  cluster.rank(1).Leave();
  cluster.ReplaceRank(1);
  REQUIRE(cluster.rank(1).Join(cluster.sender(1).engine(), 1).ok());
  cluster.rank(1).AwaitStep();
  for (uint32_t unit = 0; unit < 3; ++unit) {
    CHECK((cluster.rank(1).Gradient(unit) == model.Sum(1, unit)));
  }
  CHECK(cluster.rank(1).Publish(2).ok());
  StepAll(cluster, model, 2);
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
    StepAll(cluster, model, 1);
    PublishAll(cluster, 2);
  }
  SECTION("after Step the rank steps") {
    StepAll(cluster, model, 1);
    cluster.RestartSender(rank);
    REQUIRE(cluster.rank(rank).Join(cluster.sender(rank).engine(), 1).ok());
    cluster.rank(rank).AwaitStep();
    CheckStep(cluster, model);
    PublishAll(cluster, 2);
  }
  StepAll(cluster, model, 2);
}

TEST_CASE("a gradient that is not finite is skipped by all", "[minibatch]") {
  TrainCluster cluster(Uneven(2));
  Model model(cluster.options(), 1);
  cluster.JoinAll();
  for (const uint32_t r : {0U, 1U}) cluster.rank(r).AwaitOpen(1);
  Gradients by_owner = model.Draw(2);
  by_owner[1][3] = std::nanf("");
  CHECK(cluster.rank(0).Push(2, by_owner));
  for (int times = 0; times < 2; ++times) CHECK(cluster.rank(0).Finish(1).ok());
  CHECK_THAT(ToString(cluster.rank(0).Finish(2)), Contains("finished already"));
  CHECK(cluster.rank(1).Finish(1).ok());
  for (const uint32_t r : {0U, 1U}) {
    CHECK_FALSE(cluster.rank(r).AwaitStep().step().finite());
    CHECK_THAT(ToString(cluster.rank(r).Publish(2)), Contains("not finite"));
    CHECK(cluster.rank(r).Skip().ok());
  }
  StepAll(cluster, model, 2);
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
