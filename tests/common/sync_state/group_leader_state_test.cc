// The leader of a commit group: the rules one by one.
#include "common/sync_state/group_leader_state.h"

#include <catch2/catch.hpp>
#include <optional>
#include <vector>

#include "tests/common/sync_state/leader_of_two.h"

namespace dws {

TEST_CASE("a round goes through stage and decision and pause and commit and release", "[group]") {
  Group group;
  group.Join(0, At(4));
  CHECK(group.Did().empty());  // nothing before all members have joined
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

TEST_CASE("a newer target waits until the round has ended", "[group]") {
  Group group = InPhase('C');
  group.Target(At(6));
  CHECK(group.leader.round()->target == At(5));
  group.Up(0, group.Committed(5));
  group.Did();
  group.Up(1, group.Committed(5));
  CHECK(group.Did() == "sRRPP");
  CHECK(group.leader.round()->target == At(6));
}

TEST_CASE("while a round is staged the engine runs with the version that all hold", "[group]") {
  Group group;
  group.Target(At(5));
  group.Join(0, At(4));
  group.Join(1, std::nullopt);  // its memory has been read but not yet compared
  CHECK(group.Phase() == 'S');
  group.Did();
  group.Up(
      1,
      GroupReport{
          .seen = group.last_nonce, .held = group.round, .generation = kGeneration, .live = At(4)});
  CHECK(group.Phase() == 'S');
  CHECK(group.Did() == "RR");
  group.leader.OnPaused(GroupNonce(1), OkStatus());  // for a round that was given up
  group.Take();
  CHECK(group.Did() == "R");
}

TEST_CASE("a round whose decision cannot be recorded is aborted", "[group]") {
  Group group = InPhase('D');
  group.Did();
  group.Decide(ResourceExhaustedError("disk full"));
  CHECK(group.Did() == "AAr");
  CHECK_FALSE(group.leader.decided().has_value());
}

TEST_CASE("a round whose pause fails is aborted and the leader's engine rank resumes", "[group]") {
  Group group = InPhase('P');
  group.Did();
  group.Pause(DeadlineExceededError("no answer"));
  CHECK(group.Did() == "AArsR");  // member 1 was not stopped
  CHECK_FALSE(group.leader.decided().has_value());
}

TEST_CASE("after a COMMIT was sent no event causes an ABORT or a RESUME", "[group]") {
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
  // Sent before the COMMIT arrived, with both at 4. They may be writing 5 by now.
  const GroupReport old{.seen = group.round, .generation = kGeneration, .live = At(4)};
  group.Up(0, old);
  group.Up(1, old);
  CHECK(group.Did().empty());
  CHECK(group.Phase() == 'C');
}

TEST_CASE("a member that lost its COMMIT commits in a new round before the release", "[group]") {
  Group group = InPhase('c');
  group.Did();
  // Its engine rank was attached again, so its staged version is gone.
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

TEST_CASE("members are released if one that lost its connection during COMMIT had committed",
          "[group]") {
  Group group = InPhase('c');
  group.Did();
  group.Connect(1);
  CHECK(group.Did().empty());
  group.Up(1, GroupReport{.generation = kGeneration, .live = At(5)});
  CHECK(group.Did() == "sRR");
}

TEST_CASE("members roll forward if one that lost its connection during COMMIT had not committed",
          "[group]") {
  Group group = InPhase('c');
  group.Did();
  group.Connect(1);
  group.Up(1, GroupReport{.generation = kGeneration, .live = At(4)});
  CHECK(group.Did() == "PP");
  CHECK(group.leader.round()->target == At(5));
}

TEST_CASE("a COMMITTED of an earlier round does not count in a later one", "[group]") {
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

TEST_CASE("after a restart no round has a target below the decided version", "[group]") {
  Group group(At(5));
  group.Join(0, At(4));
  group.Join(1, std::nullopt);
  group.Target(At(4));
  CHECK(group.Phase() == '-');
  group.Target(At(5));
  CHECK(group.Phase() == 'S');
}

TEST_CASE("after a restart members that all hold one version are released", "[group]") {
  Group group(At(5));
  group.Join(0, At(4));
  group.Join(1, At(4));
  CHECK(group.Did() == "sRR");
}

TEST_CASE("members with different versions go to no version below any of theirs", "[group]") {
  Group group;
  group.Join(0, At(4));
  group.Join(1, At(6));
  group.Target(At(5));
  CHECK(group.Did().empty());
  group.Target(At(6));
  CHECK(group.Did() == "PP");
}

TEST_CASE("a target of a newer stream is followed and one of an older stream is ignored",
          "[group]") {
  Group group = InPhase('-');
  group.Did();
  group.Target(At(9, kOld));
  CHECK(group.Did().empty());
  group.Target(At(1, kNew));
  CHECK(group.Did() == "PP");
}

TEST_CASE("a failed round is repeated only after the retry delay", "[group]") {
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

TEST_CASE("after an eviction the group has ended and nothing is released or committed", "[group]") {
  for (const char phase : {'-', 'S', 'D', 'P', 'C', 'c'}) {
    Group group = InPhase(phase);
    group.Did();
    group.leader.Evict(MemberIndex(1), "its host is gone");
    group.Take();
    CHECK(group.Did() == "EE");
    CHECK(group.leader.ended());
    for (const auto& member : group.leader.members()) {  // their state is cleared
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

TEST_CASE("nothing is staged or released while no member holds some slice", "[protocol]") {
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
  CHECK(group.leader.unheld() == std::nullopt);  // not all members have reported their share
  attach(group, 1, {true, true, false}, 7);
  CHECK(group.leader.unheld() == 2);
  CHECK(group.Did() == "");

  attach(group, 1, {false, true, true}, 8);  // attached again
  CHECK(group.leader.unheld() == std::nullopt);
  CHECK(group.Did() == "RRPP");

  attach(group, 1, {false, true, false}, 9);  // the open round is given up
  CHECK(group.leader.unheld() == 2);
  CHECK(group.Phase() == '-');
  group.Did();
  group.leader.OnRetry();
  group.Take();
  CHECK(group.Did() == "");
  group.leader.OnDisconnect(MemberIndex(1), group.connections[1]);
  CHECK(group.leader.unheld() == std::nullopt);
}

TEST_CASE("a round staged by another engine rank than expected is not decided", "[protocol]") {
  Group group;
  group.Join(0, At(4));
  group.Join(1, At(4));
  group.Target(At(5));
  group.Did();
  // Attached again while PREPARE was on its way to it.
  group.shares[0] = group.shares[1] = {};
  group.Up(1,
           GroupShare{.generation = Generation(8), .share = {.held = {true}, .excluded = {false}}});
  group.Up(1, GroupReport{.generation = Generation(8), .live = At(4)});
  CHECK(group.leader.unheld() == 0);  // also of another layout
  CHECK(group.Phase() == 'S');
  group.Up(0, group.Staged(5));
  GroupStaged staged = group.Staged(5);
  staged.generation = Generation(8);
  group.Up(1, staged);
  CHECK(group.Did() == "AAr");
  CHECK(group.Phase() == '-');
}

TEST_CASE("an engine rank without a share of its generation is not released", "[protocol]") {
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
  say(GroupShare{.generation = Generation(6), .share = {}});  // of an earlier generation
  CHECK(group.Did() == "");
  say(GroupShare{.generation = kGeneration, .share = {}});
  CHECK(group.Did() == "RR");
}

TEST_CASE("a decision of a forgotten stream no longer restricts targets", "[group]") {
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

TEST_CASE("a round of a forgotten stream is given up", "[group]") {
  Group group = InPhase('S');
  group.Did();
  group.leader.OnForget(kStream);
  group.Take();
  CHECK(group.Did() == "AAr");
  CHECK(group.Phase() == '-');
  CHECK_FALSE(group.leader.decided().has_value());
}

}  // namespace dws
