// The leader of a commit group whose commit policy holds staged rounds back.
#include <catch2/catch.hpp>
#include <optional>

#include "tests/common/sync_state/leader_of_two.h"

namespace dws {
namespace {

constexpr CommitPolicy kBoundary{.kind = CommitPolicy::Kind::kBoundary};
constexpr CommitPolicy kTwo{.kind = CommitPolicy::Kind::kMaxBehind, .max_behind = 2};

// Both run with version 4; then both have staged `target`.
Group Staged(const CommitPolicy& policy, uint64_t target = 5) {
  Group group(std::nullopt, policy);
  group.Join(0, At(4));
  group.Join(1, At(4));
  group.Target(At(target));
  group.Up(0, group.Staged(target));
  group.Did();
  group.Up(1, group.Staged(target));
  return group;
}
void Boundary(Group& group) {
  group.leader.OnBoundary();
  group.Take();
}

}  // namespace

TEST_CASE("a staged round is held until a boundary", "[group]") {
  Group group = Staged(kBoundary);
  CHECK(group.Did().empty());
  CHECK(group.Phase() == 'H');
  CHECK(group.leader.hold() == RoundHold::kHeld);
  group.leader.OnRetry();
  group.Target(At(5));
  CHECK(group.Did().empty());

  Boundary(group);
  CHECK(group.Did() == "d");
  CHECK(group.leader.hold() == RoundHold::kUnderWay);
  group.Decide();
  group.Pause();
  group.Up(0, group.Committed(5));
  group.Up(1, group.Committed(5));
  CHECK(group.Did() == "pCCsRR");
  CHECK(group.leader.hold() == RoundHold::kNone);
}

TEST_CASE("a boundary before all have staged commits nothing", "[group]") {
  Group group(std::nullopt, kBoundary);
  group.Join(0, At(4));
  group.Join(1, At(4));
  group.Target(At(5));
  group.Up(0, group.Staged(5));
  group.Did();
  CHECK(group.leader.hold() == RoundHold::kNone);
  Boundary(group);
  group.Up(1, group.Staged(5));
  CHECK(group.Did().empty());
  CHECK(group.Phase() == 'H');
}

TEST_CASE("a newer target replaces a held round, and nothing of the older one is committed",
          "[group]") {
  Group group = Staged(kBoundary);
  const GroupStaged old = group.Staged(5);
  group.Target(At(6));
  CHECK(group.Did() == "PP");
  CHECK(group.Phase() == 'S');
  CHECK(group.leader.hold() == RoundHold::kUnderWay);  // a boundary waits for it
  CHECK(group.leader.replaced() == 1);
  group.Up(0, old);
  group.Up(1, old);
  CHECK(group.Did().empty());  // late answers of the round before
  group.Up(0, group.Staged(6));
  group.Up(1, group.Staged(6));
  CHECK(group.Phase() == 'H');
  group.Target(At(5));  // an old announcement
  CHECK(group.Did().empty());
  Boundary(group);
  CHECK(group.Did() == "d");
  CHECK(group.leader.round()->target == At(6));
}

TEST_CASE("a held round is committed before the engine falls too far behind", "[group]") {
  Group group = Staged(kTwo);
  CHECK(group.Phase() == 'H');
  group.Target(At(6));
  CHECK(group.Phase() == 'S');  // 2 behind: replaced
  group.Up(0, group.Staged(6));
  group.Up(1, group.Staged(6));
  CHECK(group.Phase() == 'H');
  group.Did();
  group.Target(At(7));  // the staged version goes first
  CHECK(group.Did() == "d");
  CHECK(group.leader.round()->target == At(6));
}

TEST_CASE("a round that is too far ahead already is not held", "[group]") {
  CHECK(Staged(kTwo, 7).Did() == "d");
}

TEST_CASE("an engine without a common version is not held back", "[group]") {
  for (const std::optional<VersionAt>& live : {std::optional<VersionAt>(), std::optional(At(3))}) {
    Group group(std::nullopt, kBoundary);
    group.Join(0, At(4));
    group.Join(1, live);
    group.Target(At(5));
    group.Up(0, group.Staged(5));
    group.Did();
    group.Up(1, group.Staged(5));
    CHECK(group.Did() == "d");
  }
}

TEST_CASE("a member that leaves, drifts or drains ends a held round", "[group]") {
  Group left = Staged(kBoundary);
  left.leader.OnDisconnect(MemberIndex(1), left.connections[1]);
  left.Take();
  CHECK(left.Phase() == '-');
  CHECK(left.leader.hold() == RoundHold::kNone);

  Group drifted = Staged(kBoundary);
  drifted.Up(1, GroupReport{.seen = drifted.last_nonce, .generation = kGeneration, .live = {}});
  CHECK(drifted.Did() == "AAr");

  Group drained = Staged(kBoundary);
  drained.Up(1, GroupUnable{.round = drained.round, .reason = "drained by an operator"});
  CHECK(drained.Did() == "AAr");
}

TEST_CASE("a member that drains before all have staged finishes a round that is not held",
          "[group]") {
  for (const bool holds : {false, true}) {
    Group group(std::nullopt, holds ? kBoundary : CommitPolicy());
    group.Join(0, At(4));
    group.Join(1, At(4));
    group.Target(At(5));
    group.Up(0, group.Staged(5));
    group.Up(0, GroupUnable{.round = group.round, .reason = "drained by an operator"});
    CHECK(group.Phase() == 'S');
    group.Did();
    group.Up(1, group.Staged(5));
    CHECK(group.Did() == (holds ? "AAr" : "d"));
  }
}

TEST_CASE("without a target nothing is held", "[group]") {
  Group group = Staged(kBoundary);
  group.Target(std::nullopt);
  CHECK(group.Did() == "AAr");
  CHECK(group.Phase() == '-');
}

TEST_CASE("a held round of a stream that has a successor is replaced", "[group]") {
  Group group = Staged(kBoundary);
  group.Target(At(1, kNew));
  CHECK(group.Did() == "PP");
  CHECK(group.leader.round()->target == At(1, kNew));
}

}  // namespace dws
