// The leader of a commit group: the rules one by one.
#include "common/sync_state/group_leader_state.h"

#include <catch2/catch.hpp>
#include <optional>
#include <vector>

#include "tests/common/sync_state/leader_of_two.h"

namespace dws {

TEST_CASE("all stage, the decision is durable, one pause, all commit, all are released",
          "[group]") {
  Group group;
  group.Join(0, At(4));
  CHECK(group.Did().empty());  // nothing without all of them
  group.Join(1, At(4));
  CHECK(group.Did() == "RR");
  group.Target(At(5));
  CHECK(group.Did() == "PP");
  group.Up(0, group.Staged(5));
  CHECK(group.Did().empty());
  group.Up(1, group.Staged(5));
  CHECK(group.Did() == "d");
  group.Decide();
  CHECK(group.Did() == "p");
  CHECK(group.leader.decided() == At(5));
  group.Pause();
  CHECK(group.Did() == "CC");
  group.Up(1, group.Committed(5));
  CHECK(group.Did().empty());
  group.Up(0, group.Committed(5));
  CHECK(group.Did() == "sRR");
  CHECK_FALSE(group.leader.decided().has_value());
  CHECK(group.Phase() == '-');
}

TEST_CASE("members hold a round's target: a newer one waits for the round's end", "[group]") {
  Group group = InPhase('C');
  group.Target(At(6));
  CHECK(group.leader.round()->target == At(5));
  group.Up(0, group.Committed(5));
  group.Did();
  group.Up(1, group.Committed(5));
  CHECK(group.Did() == "sRRPP");
  CHECK(group.leader.round()->target == At(6));
}

TEST_CASE("while a round is staged the engine runs with what all are known to hold", "[group]") {
  Group group;
  group.Target(At(5));
  group.Join(0, At(4));
  group.Join(1, std::nullopt);  // its memory has been read, and not yet been compared
  CHECK(group.Phase() == 'S');
  group.Did();
  group.Up(
      1,
      GroupReport{
          .seen = group.last_nonce, .held = group.round, .generation = kGeneration, .live = At(4)});
  CHECK(group.Phase() == 'S');
  CHECK(group.Did() == "RR");
  group.leader.OnPaused(GroupNonce(1), OkStatus());  // of a round that was given up
  group.Take();
  CHECK(group.Did() == "R");
}

TEST_CASE("a decision that cannot be made durable is aborted", "[group]") {
  Group group = InPhase('D');
  group.Did();
  group.Decide(ResourceExhaustedError("disk full"));
  CHECK(group.Did() == "AAr");
  CHECK_FALSE(group.leader.decided().has_value());
}

TEST_CASE("a pause that fails is aborted, and the leader's engine rank goes on", "[group]") {
  Group group = InPhase('P');
  group.Did();
  group.Pause(DeadlineExceededError("no answer"));
  CHECK(group.Did() == "AArsR");  // member 1 was not stopped
  CHECK_FALSE(group.leader.decided().has_value());
}

TEST_CASE("once a COMMIT was sent there is no ABORT, whatever happens", "[group]") {
  const std::vector<std::function<void(Group&)>> mishaps = {
      [](Group& g) { g.leader.OnDisconnect(MemberIndex(1), g.connections[1]), g.Take(); },
      [](Group& g) { g.Connect(1); },
      [](Group& g) { g.Up(1, GroupUnable{.round = g.round, .reason = "late"}); },
      [](Group& g) { g.Up(1, GroupReport{.seen = g.last_nonce, .generation = kGeneration}); },
      [](Group& g) { g.Pause(UnavailableError("late")); },
      [](Group& g) { g.Decide(UnavailableError("late")); },
      [](Group& g) { g.Target(At(1, kNew)); },
      [](Group& g) { g.leader.OnRetry(), g.Take(); },
  };
  for (const char phase : {'C', 'c'}) {
    for (const auto& mishap : mishaps) {
      Group group = InPhase(phase);
      group.Did();
      mishap(group);
      const std::string did = group.Did();
      CHECK(did.find('A') == std::string::npos);
      CHECK(did.find('R') == std::string::npos);
      CHECK(group.leader.decided() == At(5));
    }
  }
}

TEST_CASE("after a COMMIT an old report does not release the engine", "[group]") {
  Group group = InPhase('C');
  group.Did();
  // Said before the COMMIT arrived: both still at 4. They may be writing 5 by now.
  const GroupReport old{.seen = group.round, .generation = kGeneration, .live = At(4)};
  group.Up(0, old);
  group.Up(1, old);
  CHECK(group.Did().empty());
  CHECK(group.Phase() == 'C');
}

TEST_CASE("a member that did not carry the COMMIT out is brought along, the engine waits",
          "[group]") {
  Group group = InPhase('c');
  group.Did();
  // It was attached anew: what it had staged is gone.
  group.Up(1, GroupReport{.seen = group.last_nonce, .generation = Generation(8), .live = {}});
  CHECK(group.Did() == "PP");
  group.Up(0, group.Staged(5));
  GroupStaged staged = group.Staged(5);
  staged.generation = Generation(8);
  group.Up(1, staged);
  group.Decide();
  group.Pause();
  CHECK(group.Did() == "dpCC");
  group.Up(0, group.Committed(5));
  GroupCommitted committed = group.Committed(5);
  committed.generation = Generation(8);
  group.Up(1, committed);
  CHECK(group.Did() == "sRR");
}

TEST_CASE("a connection lost in the middle of a COMMIT: it had committed, all are released",
          "[group]") {
  Group group = InPhase('c');
  group.Did();
  group.Connect(1);
  CHECK(group.Did().empty());
  group.Up(1, GroupReport{.generation = kGeneration, .live = At(5)});
  CHECK(group.Did() == "sRR");
}

TEST_CASE("a connection lost in the middle of a COMMIT: it had not, all roll forward", "[group]") {
  Group group = InPhase('c');
  group.Did();
  group.Connect(1);
  group.Up(1, GroupReport{.generation = kGeneration, .live = At(4)});
  CHECK(group.Did() == "PP");
  CHECK(group.leader.round()->target == At(5));
}

TEST_CASE("a COMMITTED of an earlier round says nothing of a later one", "[group]") {
  Group group = InPhase('c');
  const GroupCommitted earlier = group.Committed(5);
  group.Up(1, GroupReport{.seen = group.last_nonce, .generation = kGeneration, .live = At(4)});
  group.Up(0, group.Staged(5));
  group.Up(1, group.Staged(5));
  group.Decide();
  group.Pause();
  group.Did();
  group.Up(0, earlier);
  group.Up(1, earlier);
  CHECK(group.Did().empty());
  CHECK(group.Phase() == 'C');
}

TEST_CASE("after a restart nothing is below what was decided", "[group]") {
  Group group(At(5));
  group.Join(0, At(4));
  group.Join(1, std::nullopt);
  group.Target(At(4));
  CHECK(group.Phase() == '-');
  group.Target(At(5));
  CHECK(group.Phase() == 'S');
}

TEST_CASE("after a restart members that hold one version are released: no COMMIT reached them",
          "[group]") {
  Group group(At(5));
  group.Join(0, At(4));
  group.Join(1, At(4));
  CHECK(group.Did() == "sRR");
}

TEST_CASE("members that differ go to no version below any of theirs", "[group]") {
  Group group;
  group.Join(0, At(4));
  group.Join(1, At(6));
  group.Target(At(5));
  CHECK(group.Did().empty());
  group.Target(At(6));
  CHECK(group.Did() == "PP");
}

TEST_CASE("a new stream replaces whatever there was, an old one nothing", "[group]") {
  Group group = InPhase('-');
  group.Did();
  group.Target(At(9, kOld));
  CHECK(group.Did().empty());
  group.Target(At(1, kNew));
  CHECK(group.Did() == "PP");
}

TEST_CASE("a round is tried again only when it is time", "[group]") {
  Group group = InPhase('S');
  group.Did();
  group.Up(1, GroupUnable{.round = group.round, .reason = "not retained"});
  CHECK(group.Did() == "AAr");
  group.Target(At(6));
  CHECK(group.Did().empty());
  group.leader.OnRetry();
  group.Take();
  CHECK(group.Did() == "PP");
  CHECK(group.leader.round()->target == At(6));
}

TEST_CASE("an evicted member ends the engine: nothing is released or committed any more",
          "[group]") {
  for (const char phase : {'-', 'S', 'D', 'P', 'C', 'c'}) {
    Group group = InPhase(phase);
    group.Did();
    group.leader.Evict(MemberIndex(1), "its host is gone");
    group.Take();
    CHECK(group.Did() == "EE");
    CHECK(group.leader.ended());
    for (const auto& member : group.leader.members()) {  // nothing is known of them any more
      CHECK_FALSE((member.reported || member.released || member.live.has_value()));
      CHECK(member.connection.has_value());
    }
    group.Join(0, At(5));
    group.Join(1, At(5));
    group.Up(0, group.Committed(5));
    group.Decide();
    group.Pause();
    group.Target(At(6));
    group.leader.OnRetry();
    group.leader.Evict(MemberIndex(0), "again");
    group.Take();
    CHECK(group.Did() == "EE");  // each on its new connection
  }
}

TEST_CASE("nothing is staged or released while a slice is held by nobody", "[protocol]") {
  const auto attach = [](Group& group, uint32_t member, std::vector<bool> held,
                         uint64_t generation) {
    const std::vector<bool> excluded(held.size());
    group.shares[member] = {.held = std::move(held), .excluded = excluded};
    group.Up(
        member,
        GroupReport{.seen = group.last_nonce, .generation = Generation(generation), .live = At(4)});
  };
  Group group;
  group.Connect(0);
  group.Connect(1);
  group.Target(At(5));
  attach(group, 0, {true, false, false}, 7);
  CHECK(group.leader.unheld() == std::nullopt);  // not all have said what they hold
  attach(group, 1, {true, true, false}, 7);
  CHECK(group.leader.unheld() == 2);
  CHECK(group.Did() == "");

  attach(group, 1, {false, true, true}, 8);  // attached anew
  CHECK(group.leader.unheld() == std::nullopt);
  CHECK(group.Did() == "RRPP");

  attach(group, 1, {false, true, false}, 9);  // a round is open: it is given up
  CHECK(group.leader.unheld() == 2);
  CHECK(group.Phase() == '-');
  group.Did();
  group.leader.OnRetry();
  group.Take();
  CHECK(group.Did() == "");
  group.leader.OnDisconnect(MemberIndex(1), group.connections[1]);
  CHECK(group.leader.unheld() == std::nullopt);
}

TEST_CASE("what is staged by an engine rank that was not counted on is not decided", "[protocol]") {
  Group group;
  group.Join(0, At(4));
  group.Join(1, At(4));
  group.Target(At(5));
  group.Did();
  // Attached anew while PREPARE was on its way to it.
  group.shares[0] = group.shares[1] = {};
  group.Up(1,
           GroupShare{.generation = Generation(8), .share = {.held = {true}, .excluded = {false}}});
  group.Up(1, GroupReport{.generation = Generation(8), .live = At(4)});
  CHECK(group.leader.unheld() == 0);  // of another layout, too
  CHECK(group.Phase() == 'S');
  group.Up(0, group.Staged(5));
  GroupStaged staged = group.Staged(5);
  staged.generation = Generation(8);
  group.Up(1, staged);
  CHECK(group.Did() == "AAr");
  CHECK(group.Phase() == '-');
}

TEST_CASE("an engine rank whose share was not heard is not counted on", "[protocol]") {
  Group group;
  group.Join(0, At(4));
  group.Connect(1);
  const GroupReport report{.generation = kGeneration, .live = At(4)};
  const auto say = [&group](const GroupUp& message) {
    group.leader.OnUp(MemberIndex(1), group.connections[1], message);
    group.Take();
  };
  say(report);
  CHECK(group.Did() == "");
  say(GroupShare{.generation = Generation(6), .share = {}});  // of one before
  CHECK(group.Did() == "");
  say(GroupShare{.generation = kGeneration, .share = {}});
  CHECK(group.Did() == "RR");
}

TEST_CASE("what was decided of a stream that is forgotten binds nobody", "[group]") {
  Group group(At(9, kNew));
  group.Join(0, std::nullopt);
  group.Join(1, std::nullopt);
  group.Target(At(5));
  CHECK(group.Did().empty());
  group.leader.OnForget(kOld);
  group.Take();
  CHECK(group.Did().empty());
  group.leader.OnForget(kNew);
  group.Take();
  CHECK(group.Did() == "PP");
}

TEST_CASE("a round of a stream that is forgotten is given up", "[group]") {
  Group group = InPhase('S');
  group.Did();
  group.leader.OnForget(kStream);
  group.Take();
  CHECK(group.Did() == "AAr");
  CHECK(group.Phase() == '-');
  CHECK_FALSE(group.leader.decided().has_value());
}

}  // namespace dws
