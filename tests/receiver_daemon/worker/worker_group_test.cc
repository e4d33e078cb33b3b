// The worker as a member and as the leader of a commit group, over connections in this process.
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tests/fakes/eventually.h"
#include "tests/receiver_daemon/worker/group_pair.h"

namespace dws {
namespace {

template <typename Record>
size_t Count(const MemoryReceiverLedger& ledger) {
  size_t count = 0;
  for (const ReceiverRecord& record : ledger.records()) {
    count += std::holds_alternative<Record>(record) ? 1 : 0;
  }
  return count;
}

}  // namespace

TEST_CASE("a receiver in a group commits nothing on its own", "[group]") {
  FakeTrainer trainer(OneRank());
  Pair pair(trainer);
  pair.Offer({trainer.Publish()});
  REQUIRE(pair.leader.worker.Step().ok());
  REQUIRE(pair.member.worker.Step().ok());
  CHECK(pair.leader_rank.running == 0);
  CHECK(pair.member_rank.running == 0);
  CHECK(Count<CommitIntent>(pair.leader_ledger) == 0);
  CHECK(Count<CommitIntent>(pair.member_ledger) == 0);
  CHECK_THAT(pair.leader.readiness.back(),
             Catch::Contains("member 1 of group 'g' has not connected yet"));
  CHECK_THAT(pair.member.readiness.back(),
             Catch::Contains("the leader of group 'g' at leader:1 is not connected"));
}

TEST_CASE("a group changes versions together and records its decision", "[group]") {
  FakeTrainer trainer(OneRank());
  Pair pair(trainer);
  pair.RunFirstVersion();
  CHECK(pair.leader_rank.running == 1);
  CHECK(pair.member_rank.running == 1);
  CHECK(pair.leader.readiness.back() == "ready");
  CHECK(pair.member.readiness.back() == "ready");

  trainer.Publish();
  pair.Offer({1, 2, trainer.Publish()});
  pair.Run(/*stop_before_commit=*/true);
  // DECIDED is durable and the engine has paused; nothing else has happened.
  CHECK(pair.leader_ledger.state().decided().has_value());
  CHECK(pair.leader_rank.running == 0);
  CHECK(pair.member_rank.running == 1);
  CHECK(pair.member_rank.Holds(trainer, 1));
  pair.Run();
  for (Client* rank : {&pair.leader_rank, &pair.member_rank}) {
    CHECK(rank->running == 3);
    CHECK(rank->Holds(trainer, 3));
  }
  CHECK_FALSE(pair.leader_ledger.state().decided().has_value());
  CHECK(Count<GroupDecided>(pair.leader_ledger) == 2);
  CHECK(Count<GroupDecided>(pair.member_ledger) == 0);
  CHECK(pair.member.worker.status().commits == 2);
  CHECK(pair.member.worker.status().last_commit->pause > Duration::zero());
}

TEST_CASE("forward passes that a group's commit waits for are no part of its pause", "[group]") {
  FakeTrainer trainer(OneRank());
  Pair pair(trainer);
  pair.RunFirstVersion();
  pair.leader_rank.on_pause = [&pair] { pair.leader.clock.Jump(std::chrono::seconds(100)); };
  pair.member_rank.on_pause = [&pair] { pair.member.clock.Jump(std::chrono::seconds(100)); };
  pair.Offer({1, trainer.Publish()});
  pair.Run();
  for (Daemon* daemon : {&pair.leader, &pair.member}) {
    REQUIRE(daemon->worker.status().commits == 2);
    CHECK(daemon->worker.status().last_commit->pause > Duration::zero());
    CHECK(daemon->worker.status().last_commit->pause < std::chrono::seconds(50));
  }
}

TEST_CASE("nothing is scrubbed or verified between a group's write and its release", "[group]") {
  FakeTrainer trainer(OneRank());
  Pair pair(trainer, {.bytes_per_second_max = uint64_t{1} << 40});
  pair.RunFirstVersion();
  pair.Offer({1, trainer.Publish()});
  pair.Run(/*stop_before_commit=*/true);
  REQUIRE(pair.leader_rank.running == 0);
  const uint64_t bytes = pair.leader.worker.status().scrub.bytes;
  CHECK(bytes > 0);
  const auto task = pair.leader.requests.Verify();
  REQUIRE(task.ok());
  for (int i = 0; i < 3; ++i) REQUIRE(pair.leader.worker.Step().ok());
  CHECK(pair.leader.worker.status().scrub.bytes == bytes);
  CHECK_FALSE(pair.leader.worker.busy());
  CHECK_FALSE((*task)->Await(Duration::zero()).has_value());

  pair.Run();
  CHECK(pair.leader_rank.running == 2);
  CHECK((*task)->Await(Duration::zero()) == OkStatus());
  CHECK(pair.leader.worker.status().scrub.bytes > bytes);
}

TEST_CASE("a member lost before its COMMIT keeps the leader's engine paused until it returns",
          "[group]") {
  FakeTrainer trainer(OneRank());
  Pair pair(trainer);
  pair.RunFirstVersion();
  pair.Offer({1, trainer.Publish()});
  pair.Run(/*stop_before_commit=*/true);
  pair.Leave();
  REQUIRE(pair.leader.worker.Step().ok());
  CHECK(pair.leader_rank.Holds(trainer, 2));
  CHECK(pair.leader_rank.running == 0);
  CHECK(pair.leader_ledger.state().decided().has_value());
  CHECK(pair.member_rank.running == 1);

  pair.Join();
  pair.Run();
  CHECK(pair.leader_rank.running == 2);
  CHECK(pair.member_rank.running == 2);
  CHECK(pair.member_rank.Holds(trainer, 2));
}

TEST_CASE("a COMMIT for an engine that has detached writes nothing", "[group]") {
  FakeTrainer trainer(OneRank());
  Pair pair(trainer);
  pair.RunFirstVersion();
  pair.Offer({1, trainer.Publish()});
  pair.Run(/*stop_before_commit=*/true);
  pair.member.registry.End(pair.member_rank.generation, UnavailableError("it hung up"));
  pair.member_rank.running = 0;
  pair.member_rank.Attach(trainer.layouts());
  pair.member.group->OnDown(pair.down, pair.wire->down.front());
  pair.wire->down.pop_front();
  REQUIRE(pair.member.worker.Step().ok());
  CHECK(pair.member_rank.Holds(trainer, 1));
  CHECK(pair.member_rank.running == 0);
  pair.Run();
  CHECK(pair.leader_rank.running == 2);
  CHECK(pair.member_rank.running == 2);
  CHECK(pair.member_rank.Holds(trainer, 2));
}

TEST_CASE("a version that cannot be staged is not committed by the others", "[group]") {
  FakeTrainer trainer(OneRank());
  Pair pair(trainer);
  pair.RunFirstVersion();
  trainer.fail_objects = UnavailableError("the sender is busy");
  pair.Offer({1, trainer.Publish()});
  pair.Run();
  CHECK(pair.leader_rank.running == 1);
  CHECK(pair.member_rank.running == 1);
  CHECK_FALSE(pair.leader_ledger.state().decided().has_value());
  CHECK_THAT(pair.leader.worker.status().trouble, Catch::Contains("the sender is busy"));
  trainer.fail_objects = OkStatus();
  CHECK(Eventually([&pair] {  // retries are delayed
    pair.Run();
    return pair.leader_rank.running == 2 && pair.member_rank.running == 2;
  }));
}

TEST_CASE("a member does not count as stale for a version that is no longer offered", "[group]") {
  FakeTrainer trainer(OneRank());
  Pair pair(trainer);
  pair.RunFirstVersion();
  trainer.fail_objects = UnavailableError("the sender went away");
  pair.Offer({1, trainer.Publish()});
  pair.Run();
  REQUIRE_THAT(pair.leader.worker.status().trouble, Catch::Contains("the sender went away"));
  pair.Offer(GENERATE(std::vector<uint64_t>{}, std::vector<uint64_t>{1}));
  for (int i = 0; i < 2; ++i) {
    pair.Run();
    for (Daemon* daemon : {&pair.leader, &pair.member}) {
      CHECK(daemon->worker.status().ready);
      CHECK(daemon->worker.status().stale == "");
      daemon->clock.Jump(limits::kStaleAfterDefault);
    }
  }
}

TEST_CASE("a member is not stale when the drain that kept it from staging is undone", "[group]") {
  FakeTrainer trainer(OneRank());
  Pair pair(trainer);
  pair.RunFirstVersion();
  pair.member.requests.SetDraining(true);
  pair.Offer({1, trainer.Publish()});
  pair.Run();
  CHECK(pair.member.worker.status().trouble == "");
  pair.member.clock.Jump(limits::kStaleAfterDefault);
  pair.Run();
  pair.member.requests.SetDraining(false);
  REQUIRE(pair.member.worker.Step().ok());
  CHECK(pair.member.readiness.back() == "ready");
}

TEST_CASE("a transfer for a round that was given up ends at its next byte", "[group]") {
  FakeTrainer trainer(OneRank());
  Pair pair(trainer);
  pair.RunFirstVersion();
  pair.Offer({1, trainer.Publish()});
  int fetches = 0;
  trainer.damage_object = [&](auto&) {
    if (++fetches == 1) pair.Leave();  // the round ends during the leader's fetch
  };
  trainer.ClearLog();
  REQUIRE(pair.leader.worker.Step().ok());
  CHECK(fetches == 1);
  CHECK(trainer.Log() == std::vector<std::string>{"object 1->2"});  // and no full tensors instead
  CHECK(pair.leader.worker.status().stage == "idle");
  CHECK_THAT(pair.leader.worker.status().trouble, !Catch::Contains("staged"));
  pair.Join();
  CHECK(Eventually([&pair] {  // retries are delayed
    pair.Run();
    return pair.leader_rank.running == 2 && pair.member_rank.running == 2;
  }));
}

TEST_CASE("a decision that cannot be recorded does not hold and is taken again", "[group]") {
  FakeTrainer trainer(OneRank());
  Pair pair(trainer);
  pair.RunFirstVersion();
  pair.leader_ledger.FailNext(ResourceExhaustedError("the disk is full"));
  pair.Offer({1, trainer.Publish()});
  REQUIRE(pair.leader.worker.Step().ok());
  CHECK(Eventually([&pair] {  // retries are delayed
    pair.Run();
    return pair.leader_rank.running == 2 && pair.member_rank.running == 2;
  }));
  CHECK(Count<GroupDecided>(pair.leader_ledger) == 2);
}

TEST_CASE("drift pauses the member at once and a round of the group repairs it", "[group]") {
  FakeTrainer trainer(OneRank());
  Pair pair(trainer);
  pair.RunFirstVersion();
  const uint64_t repairs = pair.member.worker.status().repairs;
  pair.member_rank.created.region.mutable_bytes()[3] ^= std::byte{1};
  const auto verify = pair.member.requests.Verify();
  REQUIRE(verify.ok());
  while (pair.member_rank.running != 0) REQUIRE(pair.member.worker.Step().ok());
  CHECK_FALSE(pair.member.worker.status().ready);
  CHECK(pair.leader_rank.running == 1);
  pair.Run();
  CHECK(pair.leader_rank.running == 1);
  CHECK(pair.member_rank.running == 1);
  CHECK(pair.member_rank.Holds(trainer, 1));
  CHECK(pair.member.worker.status().repairs == repairs + 1);
}

TEST_CASE("a group commits new weights together when its version number is published again",
          "[group]") {
  FakeTrainer trainer(OneRank());
  Pair pair(trainer);
  pair.RunFirstVersion();
  trainer.GoBackTo(0);
  trainer.Publish();
  pair.leader.Connect();
  pair.leader.Offer({1});
  pair.Run();
  CHECK(pair.leader_rank.Holds(trainer, 1));
  pair.member.Connect();
  pair.member.Offer({1});
  pair.Run();
  for (const Client* rank : {&pair.leader_rank, &pair.member_rank}) {
    CHECK(rank->running == 1);
    CHECK(rank->Holds(trainer, 1));
  }
}

TEST_CASE("a restarted leader keeps the version that was decided", "[group]") {
  FakeTrainer trainer(OneRank());
  trainer.Publish();
  trainer.Publish();
  Pair pair(trainer);
  REQUIRE(pair.leader_ledger.Append(StreamAccepted{.stream = trainer.stream()}).ok());
  REQUIRE(pair.leader_ledger
              .Append(GroupDecided{.stream = trainer.stream(), .version = WeightVersion(2)})
              .ok());
  Daemon again(trainer, pair.leader_ledger, {}, {},
               {.group_id = "g", .index = 0, .member_count = 2});
  CHECK(again.group->view().decided->version == WeightVersion(2));
}

TEST_CASE("a member whose group has ended is never released again", "[group]") {
  FakeTrainer trainer(OneRank());
  Pair pair(trainer);
  pair.RunFirstVersion();
  pair.member.group->OnDown(
      pair.down, {.nonce = GroupNonce(1'000), .body = GroupEnd{.reason = "member 2 was evicted"}});
  CHECK(pair.member_rank.ended);         // at once, not by the worker
  CHECK(pair.member_rank.running == 0);  // it was told to pause before
  CHECK(absl::IsPermissionDenied(
      pair.member.registry.Reserve({.engine_rank = 0, .engine_world_size = 1}).status()));
  pair.Offer({1, trainer.Publish()});
  pair.Run();
  CHECK(pair.member_rank.running == 0);
  CHECK_THAT(pair.member.readiness.back(),
             Catch::Contains("then the engine (member 2 was evicted)"));
}

TEST_CASE("a member index belongs to one receiver", "[group]") {
  FakeTrainer trainer(OneRank());
  Pair pair(trainer);
  pair.Join();
  CommitGroup& group = *pair.leader.group;
  const auto refused = [&group](uint32_t index, const std::string& id) {
    return group.OnMemberConnect(index, id, std::make_shared<Wire>()).status();
  };
  CHECK(absl::IsInvalidArgument(refused(0, "r9")));
  CHECK(absl::IsInvalidArgument(refused(2, "r9")));
  CHECK(absl::IsAlreadyExists(refused(1, "r9")));
  CHECK_THAT(std::string(Message(refused(1, "r0"))), Catch::Contains("'r1', which is connected"));
  pair.Leave();
  CHECK_THAT(std::string(Message(refused(1, "r0"))), Catch::Contains("is member 0 of group 'g'"));
  pair.Join();
  const auto first = pair.wire;
  CHECK_FALSE(first->closed.has_value());
  const ConnectionId old = pair.up;
  pair.Join();  // the same receiver, over a new connection
  REQUIRE(first->closed.has_value());
  CHECK(absl::IsAborted(*first->closed));
  group.OnMemberDisconnect(1, old);  // a late event of the old connection
  CHECK(group.view().members[1].connected);
  group.Stop();
  CHECK(absl::IsUnavailable(*pair.wire->closed));
  CHECK(absl::IsUnavailable(refused(1, "r1")));
}

TEST_CASE("a forget that the leader cannot record keeps the group's decision", "[group]") {
  FakeTrainer trainer(OneRank(), 7);
  Pair pair(trainer);
  pair.RunFirstVersion();
  pair.Offer({1, trainer.Publish()});
  pair.Run(/*stop_before_commit=*/true);
  REQUIRE(pair.leader_ledger.state().decided().has_value());
  pair.leader_ledger.FailNext(ResourceExhaustedError("disk full"));
  const auto task = pair.leader.requests.Forget(trainer.stream());
  REQUIRE(task.ok());
  REQUIRE(pair.leader.worker.Step().ok());
  CHECK(absl::IsResourceExhausted(*(*task)->Await(Duration::zero())));
  REQUIRE(pair.leader_ledger.state().decided().has_value());
  REQUIRE(pair.leader.group->view().decided.has_value());
  CHECK(pair.leader.group->view().decided->version == WeightVersion(2));
  // No member runs below the decided version, even while only older ones are offered.
  pair.Offer({1});
  pair.Run();
  CHECK(pair.leader_rank.running == 0);
  CHECK(pair.member_rank.running == 0);
  pair.Offer({1, 2});
  pair.Run();
  CHECK(pair.leader_rank.running == 2);
  CHECK(pair.member_rank.running == 2);
}

TEST_CASE("a stream that all members forget is followed again by a round of the group", "[group]") {
  FakeTrainer trainer(OneRank(), 7);
  Pair pair(trainer);
  pair.RunFirstVersion();
  REQUIRE(pair.leader_rank.running == 1);
  REQUIRE(pair.member_rank.running == 1);
  for (Daemon* daemon : {&pair.leader, &pair.member}) {
    const auto task = daemon->requests.Forget(trainer.stream());
    REQUIRE(task.ok());
    REQUIRE(daemon->worker.Step().ok());
    CHECK((*task)->Await(Duration::zero())->ok());
  }
  CHECK(pair.leader_rank.running == 0);
  CHECK(pair.member_rank.running == 0);
  pair.leader.Connect();
  pair.member.Connect();
  pair.Offer({1});
  pair.Run();
  CHECK(pair.leader_rank.running == 1);
  CHECK(pair.member_rank.running == 1);
  CHECK(pair.leader_rank.Holds(trainer, 1));
}

}  // namespace dws
