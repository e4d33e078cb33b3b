// The leader of a commit group: the rules one by one, then every event in every phase.
#include "common/sync_state/group_leader_state.h"

#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace dws {
namespace {

constexpr StreamId kOld{.incarnation = 1, .id_hi = 0, .id_lo = 11};
constexpr StreamId kStream{.incarnation = 2, .id_hi = 0, .id_lo = 22};
constexpr StreamId kNew{.incarnation = 3, .id_hi = 0, .id_lo = 33};
constexpr Generation kGeneration(7);
constexpr uint32_t kMembers = 2;

VersionAt At(uint64_t version, const StreamId& stream = kStream) {
  return {.stream = stream, .version = WeightVersion(version)};
}

// A leader with two members, and short ways to say what they do.
struct Group {
  explicit Group(std::optional<VersionAt> decided = std::nullopt) : leader(kMembers, decided) {}

  void Connect(uint32_t member) {
    connections[member] = ConnectionId(connections[member].value() + 10 + member);
    leader.OnConnect(MemberIndex(member), connections[member]);
    Take();
  }
  void Report(uint32_t member, GroupReport report) {
    report.seen = std::max(report.seen, GroupNonce(0));
    Up(member, report);
  }
  // Connected, its engine attached, memory at `live`.
  void Join(uint32_t member, std::optional<VersionAt> live) {
    Connect(member);
    Up(member, GroupReport{.generation = kGeneration, .live = live});
  }
  // As a member does, says what an engine rank holds before it is first reported.
  void Up(uint32_t member, const GroupUp& message) {
    const auto* report = std::get_if<GroupReport>(&message);
    if (report != nullptr && report->generation.has_value()) {
      const auto said = std::pair(connections[member], *report->generation);
      if (std::exchange(shares_said[member], said) != said) {
        leader.OnUp(MemberIndex(member), connections[member],
                    GroupShare{.generation = said.second, .share = shares[member]});
      }
    }
    leader.OnUp(MemberIndex(member), connections[member], message);
    Take();
  }
  GroupStaged Staged(uint64_t version) const {
    return {.round = round, .target = At(version), .base = {}, .generation = kGeneration};
  }
  GroupCommitted Committed(uint64_t version) const {
    return {.round = round, .version = At(version), .generation = kGeneration};
  }
  void Decide(const Status& status = OkStatus()) {
    leader.OnDecided({.round = round, .version = At(5)}, status);
    Take();
  }
  void Pause(const Status& status = OkStatus()) {
    leader.OnPaused(round, status);
    Take();
  }
  void Target(std::optional<VersionAt> target) {
    leader.OnTarget(target);
    Take();
  }
  // Remembers what the leader wants done, one letter for each: Prepare, Commit, Abort, Resume, End,
  // and d(ecide), s(ettled), p(ause), r(etry later).
  void Take() {
    for (const LeaderAction& action : leader.TakeActions()) {
      if (const auto* down = std::get_if<SendDown>(&action)) {
        CHECK(down->message.nonce > GroupNonce(0));
        last_nonce = down->message.nonce;
        did += "PCARE"[down->message.body.index()];
        CHECK(down->connection == connections[down->member.value()]);
        if (down->message.body.index() == 0) round = down->message.nonce;
      } else {
        did += " dspr"[action.index()];
      }
    }
  }
  std::string Did() { return std::exchange(did, ""); }
  // '-' without a round, then S, D, P, C.
  char Phase() const {
    return leader.round().has_value() ? "SDPC"[static_cast<size_t>(leader.round()->phase)] : '-';
  }

  GroupLeaderState leader;
  std::map<uint32_t, ConnectionId> connections;
  std::map<uint32_t, EngineShare> shares;
  std::map<uint32_t, std::pair<ConnectionId, Generation>> shares_said;
  GroupNonce round;
  GroupNonce last_nonce;
  std::string did;
};

// Both run with version 4; then as far as `phase`: '-', S (member 0 has staged), D, P, C,
// c (member 0 has committed).
Group InPhase(char phase) {
  Group group;
  group.Join(0, At(4));
  group.Join(1, At(4));
  if (phase == '-') return group;
  group.Target(At(5));
  group.Up(0, group.Staged(5));
  if (phase == 'S') return group;
  group.Up(1, group.Staged(5));
  if (phase == 'D') return group;
  group.Decide();
  if (phase == 'P') return group;
  group.Pause();
  if (phase == 'C') return group;
  group.Up(0, group.Committed(5));
  return group;
}

}  // namespace

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
  group.Report(
      1, {.seen = group.last_nonce, .held = group.round, .generation = kGeneration, .live = At(4)});
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

namespace {

// What happens, and the phase after it in '-', S, D, P, C, c.
struct Case {
  const char* event;
  std::function<void(Group&)> act;
  std::string after;
};

// What member 1 says.
std::vector<Case> Words() {
  const auto report = [](std::optional<Generation> generation, bool seen) {
    return [=](Group& g) {
      g.Up(1, GroupReport{.seen = seen ? g.last_nonce : GroupNonce(0),
                          .generation = generation,
                          .live = At(4),
                          .released = true});
    };
  };
  const auto staged = [](auto change) {
    return [=](Group& g) {
      GroupStaged message = g.Staged(5);
      change(message);
      g.Up(1, message);
    };
  };
  const auto committed = [](auto change) {
    return [=](Group& g) {
      GroupCommitted message = g.Committed(5);
      change(message);
      g.Up(1, message);
    };
  };
  return {
      {"STAGED", staged([](auto&) {}), "-DDPCC"},
      {"STAGED of an old round", staged([](auto& m) { m.round = GroupNonce(1); }), "-SDPCC"},
      {"STAGED of another version", staged([](auto& m) { m.target = At(6); }), "-SDPCC"},
      {"STAGED of another stream", staged([](auto& m) { m.target = At(5, kOld); }), "-SDPCC"},
      {"STAGED by an old generation", staged([](auto& m) { m.generation = Generation(6); }),
       "-SDPCC"},
      {"STAGED twice by the other", [](Group& g) { g.Up(0, g.Staged(5)); }, "-SDPCC"},
      {"STAGED on an old connection",
       [](Group& g) { g.leader.OnUp(MemberIndex(1), ConnectionId(1), g.Staged(5)); }, "-SDPCC"},
      {"UNABLE", [](Group& g) { g.Up(1, GroupUnable{.round = g.round}); }, "--DPCC"},
      {"UNABLE of an old round", [](Group& g) { g.Up(1, GroupUnable{.round = GroupNonce(1)}); },
       "-SDPCC"},
      {"COMMITTED", committed([](auto&) {}), "-SDPC-"},
      {"COMMITTED of an old round", committed([](auto& m) { m.round = GroupNonce(1); }), "-SDPCC"},
      {"COMMITTED by an old generation", committed([](auto& m) { m.generation = Generation(6); }),
       "-SDPCC"},
      {"COMMITTED twice by the other", [](Group& g) { g.Up(0, g.Committed(5)); }, "-SDPCC"},
      {"REPORT without the round", report(kGeneration, true), "----SS"},
      {"REPORT by a new generation", report(Generation(8), true), "----SS"},
      {"REPORT of an engine that has gone", report(std::nullopt, true), "------"},
      {"REPORT that crossed the leader's word", report(kGeneration, false), "-SDPCC"},
  };
}

// What connections, the leader's own shell and its operator do.
std::vector<Case> Occurrences() {
  return {
      {"nothing", [](Group&) {}, "-SDPCC"},
      {"a new connection", [](Group& g) { g.Connect(1); }, "------"},
      {"the connection ends",
       [](Group& g) { g.leader.OnDisconnect(MemberIndex(1), g.connections[1]); }, "------"},
      {"an old connection ends",
       [](Group& g) { g.leader.OnDisconnect(MemberIndex(1), ConnectionId(1)); }, "-SDPCC"},
      {"decided", [](Group& g) { g.Decide(); }, "-SPPCC"},
      {"not decided", [](Group& g) { g.Decide(UnavailableError("disk")); }, "-S-PCC"},
      {"an old round is decided",
       [](Group& g) { g.leader.OnDecided({.round = GroupNonce(1), .version = At(3)}, OkStatus()); },
       "-SDPCC"},
      {"paused", [](Group& g) { g.Pause(); }, "-SDCCC"},
      {"not paused", [](Group& g) { g.Pause(UnavailableError("gone")); }, "-SD-CC"},
      {"paused for an old round", [](Group& g) { g.leader.OnPaused(GroupNonce(1), OkStatus()); },
       "-SDPCC"},
      {"a newer target", [](Group& g) { g.Target(At(6)); }, "SSDPCC"},
      {"a target below", [](Group& g) { g.Target(At(3)); }, "-SDPCC"},
      {"a target of an old stream", [](Group& g) { g.Target(At(9, kOld)); }, "-SDPCC"},
      {"no target", [](Group& g) { g.Target(std::nullopt); }, "-SDPCC"},
      {"time to try again", [](Group& g) { g.leader.OnRetry(); }, "-SDPCC"},
      {"an eviction", [](Group& g) { g.leader.Evict(MemberIndex(1), "x"); }, "------"},
  };
}

}  // namespace

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

TEST_CASE("every event in every phase", "[group]") {
  std::vector<Case> cases = Words();
  for (Case& one : Occurrences()) cases.push_back(std::move(one));
  const std::string phases = "-SDPCc";
  for (const Case& one : cases) {
    for (size_t p = 0; p < phases.size(); ++p) {
      Group group = InPhase(phases[p]);
      group.Did();
      one.act(group);
      group.Take();
      INFO(one.event << " in phase " << phases[p] << ", did " << group.did);
      CHECK(group.Phase() == one.after[p]);
      // No COMMIT but out of a pause that was asked for, no ABORT after a COMMIT.
      if (phases[p] != 'P') CHECK(group.did.find('C') == std::string::npos);
      if (phases[p] == 'C' || phases[p] == 'c') CHECK(group.did.find('A') == std::string::npos);
    }
  }
}

}  // namespace dws
