// The commit policy of a commit group: rounds that its leader holds back until a boundary.
#include <catch2/catch.hpp>
#include <variant>

#include "tests/receiver_daemon/worker/group_pair.h"

namespace dws {
namespace {

constexpr CommitPolicy kBoundary{.kind = CommitPolicy::Kind::kBoundary};

}  // namespace

TEST_CASE("a boundary lets one round go on, also where the others are faster than the leader",
          "[group][hold]") {
  FakeTrainer trainer(OneRank());
  Pair pair(trainer, {}, kBoundary);
  pair.RunFirstVersion();
  pair.Offer({1, trainer.Publish()});
  pair.Run();
  REQUIRE(pair.leader.worker.status().stage == "staged");
  REQUIRE(pair.leader_rank.running == 1);

  CommitBoundary& boundary = pair.leader.worker.boundary();
  const Opened passes(boundary, /*stays=*/false, 1);
  Opened stays(boundary, /*stays=*/true, 2);
  pair.Offer({1, 2, trainer.Publish()});
  // The member writes version 2, and stages version 3, before the leader does.
  pair.wire->at_once = [&](const GroupDown& message) {
    if (std::holds_alternative<GroupCommit>(message.body)) stays.End();
    pair.member.group->OnDown(pair.down, message);
    REQUIRE(pair.member.worker.Step().ok());
  };
  REQUIRE(pair.leader.worker.Step().ok());
  CHECK(passes.over());
  CHECK(stays.over());
  CHECK(stays.ended());
  for (int i = 0; i < 3; ++i) {
    REQUIRE(pair.leader.worker.Step().ok());
    CHECK_FALSE(pair.Mixed());
  }
  CHECK(pair.member.worker.status().target == WeightVersion(3));
  CHECK(pair.leader.worker.status().stage == "staged");
  CHECK(pair.leader.worker.status().held_since.has_value());
  for (const Client* rank : {&pair.leader_rank, &pair.member_rank}) {
    CHECK(rank->running == 2);
    CHECK(rank->Holds(trainer, 2));
  }
  const Opened next(boundary, /*stays=*/false, 3);
  for (int i = 0; i < 3; ++i) REQUIRE(pair.leader.worker.Step().ok());
  CHECK(next.over());
  CHECK(pair.leader_rank.running == 3);
  CHECK(pair.member_rank.running == 3);
}

TEST_CASE("where the leader's round fails, boundaries wait only for a commit that has begun",
          "[group][hold]") {
  FakeTrainer trainer(OneRank());
  Pair pair(trainer, {}, kBoundary);
  pair.RunFirstVersion();
  pair.Offer({1, trainer.Publish()});
  pair.Run();
  REQUIRE(pair.leader.worker.status().stage == "staged");
  CommitBoundary& boundary = pair.leader.worker.boundary();
  // A stream that cannot be recorded.
  const FakeTrainer later(OneRank(), trainer.stream().incarnation + 1);
  const auto fail = [&] {
    pair.leader_ledger.FailNext(ResourceExhaustedError("the disk is full"));
    REQUIRE(absl::IsResourceExhausted(pair.leader.worker.Step()));
  };
  const auto welcome = [&](const FakeTrainer& from) {
    Subscription& subscription = pair.leader.subscription;
    subscription.OnDisconnect(SenderIndex(0), UnavailableError("cut"));
    subscription.OnConnect(SenderIndex(0));
    REQUIRE(subscription
                .OnWelcome(SenderIndex(0), {.stream = from.stream(),
                                            .trainer_rank = TrainerRank(0),
                                            .world_size = 1,
                                            .rank_epoch = RankEpoch(2),
                                            .layout = from.ranks()[0]})
                .ok());
  };

  SECTION("nothing has begun") {
    const Opened first(boundary, /*stays=*/false, 1);
    CHECK_FALSE(first.over());
    welcome(later);
    fail();
    CHECK(first.over());
    CHECK(Opened(boundary, /*stays=*/false, 2).over());
    CHECK(pair.leader_rank.running == 1);
  }
  SECTION("a commit has begun") {
    Opened stays(boundary, /*stays=*/true, 1);
    pair.Run(/*stop_before_commit=*/true);
    REQUIRE(pair.leader_rank.running == 0);
    stays.End();
    welcome(later);
    fail();
    CHECK_FALSE(stays.over());
    CHECK_FALSE(stays.ended());
    pair.Run();
    CHECK(stays.over());
    CHECK(stays.ended());
    CHECK(pair.leader_rank.running == 2);
    CHECK(pair.member_rank.running == 2);
  }
}

}  // namespace dws
