// A commit group of two receivers, over connections in this process. Tests drive the rounds of
// their workers one by one.
#pragma once

#include <catch2/catch.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "receiver_daemon/worker/worker.h"
#include "tests/receiver_daemon/worker_fixture.h"

namespace dws {

// The leader's end of a connection to a member; messages arrive when the test delivers them.
class Wire final : public MemberConnection {
 public:
  void Welcome() override { ++welcomes; }
  void Send(const GroupDown& message) override {
    if (at_once) return at_once(message);
    down.push_back(message);
  }
  void Keepalive() override {}
  void Close(const Status& reason) override { closed = reason; }

  int welcomes = 0;
  std::deque<GroupDown> down;
  std::function<void(const GroupDown&)> at_once;  // instead
  std::optional<Status> closed;
};

// Two receivers, each with an engine rank that holds everything.
struct Pair {
  explicit Pair(FakeTrainer& trainer_in, const ScrubOptions& scrub = {},
                const CommitPolicy& policy = {})
      : trainer(trainer_in),
        leader(trainer, leader_ledger, {}, scrub, {.group_id = "g", .index = 0, .member_count = 2},
               false, policy),
        member(trainer, member_ledger, {}, {},
               {.group_id = "g", .index = 1, .member_count = 2, .leader_address = "leader:1"}),
        leader_rank(*trainer.layouts(), leader.registry),
        member_rank(*trainer.layouts(), member.registry) {
    leader.Connect();
    member.Connect();
    leader_rank.Attach(trainer.layouts());
    member_rank.Attach(trainer.layouts());
  }

  void Join() {
    wire = std::make_shared<Wire>();
    const auto id = leader.group->OnMemberConnect(1, "r1", wire);
    REQUIRE(id.ok());
    CHECK(wire->welcomes == 1);
    up = *id;
    down = member.group->OnLeaderConnect(
        [this](const GroupUp& message) { leader.group->OnUp(1, up, message); });
  }
  void Leave() {
    member.group->OnLeaderDisconnect(down, UnavailableError("cut"));
    leader.group->OnMemberDisconnect(1, up);
    wire->down.clear();
  }
  void RunFirstVersion() {
    Join();
    Offer({trainer.Publish()});
    Run();
  }
  void Offer(std::vector<uint64_t> versions) {
    leader.Offer(versions);
    member.Offer(versions);
  }
  // Runs until there is nothing left to do, or until COMMIT is about to reach the member.
  void Run(bool stop_before_commit = false) {
    for (int i = 0; i < 40; ++i) {
      REQUIRE(leader.worker.Step().ok());
      while (!wire->down.empty()) {
        const GroupDown message = wire->down.front();
        if (stop_before_commit && std::holds_alternative<GroupCommit>(message.body)) return;
        wire->down.pop_front();
        member.group->OnDown(down, message);
      }
      REQUIRE(member.worker.Step().ok());
      REQUIRE_FALSE(Mixed());
      leader.group->Tick();
    }
  }
  bool Mixed() const {
    return leader_rank.running != 0 && member_rank.running != 0 &&
           leader_rank.running != member_rank.running;
  }

  FakeTrainer& trainer;
  MemoryReceiverLedger leader_ledger;
  MemoryReceiverLedger member_ledger;
  Daemon leader;
  Daemon member;
  Client leader_rank;
  Client member_rank;
  std::shared_ptr<Wire> wire;
  ConnectionId up;
  ConnectionId down;
};

}  // namespace dws
