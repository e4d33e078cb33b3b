// A member of a commit group: the rules one by one, then every event in every phase.
#include "common/sync_state/group_member_state.h"

#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace dws {
namespace {

constexpr StreamId kStream{.incarnation = 2, .id_hi = 0, .id_lo = 22};
constexpr StreamId kNew{.incarnation = 3, .id_hi = 0, .id_lo = 33};
constexpr Generation kGeneration(7);
constexpr ConnectionId kConnection(20);
constexpr GroupNonce kRound(5);

VersionAt At(uint64_t version, const StreamId& stream = kStream) {
  return {.stream = stream, .version = WeightVersion(version)};
}

struct Member {
  void Down(uint64_t nonce, decltype(GroupDown::body) body, ConnectionId connection = kConnection) {
    state.OnDown(connection, {.nonce = GroupNonce(nonce), .body = std::move(body)});
    Take();
  }
  // One letter for each action: R(eport), S(taged), U(nable), C(ommitted), H(olds) to the leader;
  // f(etch and stage), d(rop), w(rite), r(elease), e(nd).
  void Take() {
    for (const MemberAction& action : state.TakeActions()) {
      if (const auto* up = std::get_if<SendUp>(&action)) {
        did += "RSUCH"[up->message.index()];
        if (const auto* report = std::get_if<GroupReport>(&up->message)) last_report = *report;
        if (const auto* staged = std::get_if<GroupStaged>(&up->message)) last_staged = *staged;
      } else {
        did += " fdwre"[action.index()];
      }
    }
  }
  std::string Did() { return std::exchange(did, ""); }
  // I(dle), F(etching), S(taged), W(riting), E(nded).
  char Phase() const { return state.ended() ? 'E' : "IFSW"[static_cast<size_t>(state.phase())]; }

  GroupMemberState state;
  GroupReport last_report;
  GroupStaged last_staged;
  std::string did;
};

// Connected and running with version 4, then in `phase` of round 5 with version 5.
Member InPhase(char phase) {
  Member member;
  member.state.OnConnect(kConnection);
  member.state.OnEngine(kGeneration);
  member.state.OnProved(kGeneration, At(4));
  member.Down(1, GroupResume{.version = At(4), .generation = kGeneration});
  member.Did();
  if (phase == 'E') member.Down(4, GroupEnd{.reason = "evicted"});
  if (phase == 'I' || phase == 'E') return member;
  member.Down(kRound.value(), GroupPrepare{.target = At(5)});
  if (phase == 'F') return member;
  member.state.OnStaged(kRound, WeightVersion(4), OkStatus());
  member.Take();
  if (phase == 'S') return member;
  member.Down(6, GroupCommit{.round = kRound});
  return member;
}

}  // namespace

TEST_CASE("a member stages at PREPARE and writes at COMMIT and is released by RESUME", "[group]") {
  Member member = InPhase('I');
  CHECK(member.state.released());
  member.Down(5, GroupPrepare{.target = At(5)});
  CHECK(member.Did() == "f");
  CHECK(member.state.released());  // the engine runs while it stages
  member.state.OnStaged(kRound, WeightVersion(4), OkStatus());
  member.Take();
  CHECK(member.Did() == "S");
  CHECK(member.last_staged.round == kRound);
  CHECK(member.last_staged.target == At(5));
  CHECK(member.last_staged.base == WeightVersion(4));
  CHECK(member.last_staged.generation == kGeneration);
  member.Down(6, GroupCommit{.round = kRound});
  CHECK(member.Did() == "w");
  CHECK_FALSE(member.state.released());
  CHECK_FALSE(member.state.live().has_value());
  member.state.OnWritten(kRound, OkStatus(), false);
  member.Take();
  CHECK(member.Did() == "C");
  CHECK(member.state.live() == At(5));
  CHECK_FALSE(member.state.released());
  member.Down(7, GroupResume{.version = At(5), .generation = kGeneration});
  CHECK(member.Did() == "r");
  CHECK(member.state.released());
}

TEST_CASE("a repeated COMMIT writes only once", "[group]") {
  Member member = InPhase('W');
  member.Did();
  member.Down(6, GroupCommit{.round = kRound});
  CHECK(member.Did().empty());
  member.state.OnWritten(kRound, OkStatus(), false);
  member.Take();
  member.Did();
  member.Down(6, GroupCommit{.round = kRound});
  CHECK(member.Did().empty());
}

TEST_CASE("a COMMIT of an earlier round than the staged one writes nothing", "[group]") {
  Member member = InPhase('S');
  member.Down(8, GroupPrepare{.target = At(6)});
  member.state.OnStaged(GroupNonce(8), WeightVersion(4), OkStatus());
  member.Take();
  member.Did();
  member.Down(9, GroupCommit{.round = kRound});
  CHECK(member.Did() == "R");
  CHECK(member.Phase() == 'S');
}

TEST_CASE("a late RESUME of the old version does not release an engine in a newer round",
          "[group]") {
  Member member = InPhase('S');
  member.state.OnPaused();
  member.Did();
  member.Down(
      2, GroupResume{.version = At(4), .generation = kGeneration});  // sent before the round began
  CHECK(member.Did().empty());
  CHECK_FALSE(member.state.released());
}

TEST_CASE("RESUME releases the engine only if its memory holds that version", "[group]") {
  Member member = InPhase('I');
  member.Down(5, GroupResume{.version = At(3), .generation = kGeneration});
  CHECK(member.Did() == "R");
  member.state.OnEngine(Generation(8));
  member.Down(6, GroupResume{.version = At(4), .generation = kGeneration});
  CHECK(member.Did() == "HRR");
  CHECK_FALSE(member.state.released());
}

TEST_CASE("RESUME releases only the engine rank that it names", "[protocol]") {
  Member member = InPhase('I');
  member.state.OnEngine(Generation(8));
  member.state.OnProved(Generation(8), At(4));
  member.Take();
  member.Did();
  member.Down(6, GroupResume{.version = At(4), .generation = kGeneration});  // the one before
  CHECK(member.Did() == "R");
  CHECK_FALSE(member.state.released());
  member.Down(7, GroupResume{.version = At(4), .generation = Generation(8)});
  CHECK(member.Did() == "r");
}

TEST_CASE("a member sends its engine rank's share before it reports the rank", "[protocol]") {
  const EngineShare share{.held = {true, false}, .excluded = {false, false}};
  Member member;
  member.state.OnEngine(kGeneration, share);  // not connected yet
  member.state.OnConnect(kConnection);
  const auto said = [&member](size_t count) {
    const std::vector<MemberAction> actions = member.state.TakeActions();
    REQUIRE(actions.size() == count);
    std::vector<GroupUp> messages;
    for (const MemberAction& action : actions) messages.push_back(std::get<SendUp>(action).message);
    return messages;
  };
  const std::vector<GroupUp> first = said(2);
  CHECK(std::get<GroupShare>(first[0]).generation == kGeneration);
  CHECK(std::get<GroupShare>(first[0]).share == share);
  CHECK(std::get<GroupReport>(first[1]).generation == kGeneration);
  member.state.OnEngine(std::nullopt);
  CHECK_FALSE(std::get<GroupReport>(said(1)[0]).generation.has_value());
  member.state.OnEngine(Generation(8));
  CHECK(std::get<GroupShare>(said(2)[0]).share == EngineShare());
}

TEST_CASE("requests of another connection are not carried out", "[group]") {
  Member member = InPhase('S');
  member.Did();
  member.state.OnConnect(ConnectionId(21));
  member.Take();
  CHECK(member.Did() == "dHR");
  member.Down(9, GroupCommit{.round = kRound});  // on the old connection
  CHECK(member.Did().empty());
  member.Down(9, GroupCommit{.round = kRound}, ConnectionId(21));
  CHECK(member.Did() == "R");
  CHECK(member.Phase() == 'I');
}

TEST_CASE("a write continues over a new connection and is then reported", "[group]") {
  Member member = InPhase('W');
  member.state.OnConnect(ConnectionId(21));
  member.Take();
  CHECK_FALSE(member.last_report.live.has_value());
  CHECK(member.last_report.held == kRound);
  member.Did();
  member.state.OnWritten(kRound, OkStatus(), false);
  member.Take();
  CHECK(member.Did() == "R");  // not COMMITTED: this connection sent no COMMIT
  CHECK(member.last_report.live == At(5));
}

TEST_CASE("a failed write leaves memory unknown unless nothing was written", "[group]") {
  for (const bool untouched : {false, true}) {
    Member member = InPhase('W');
    member.state.OnWritten(kRound, UnavailableError("x"), untouched);
    member.Take();
    CHECK(member.last_report.live == (untouched ? std::optional(At(4)) : std::nullopt));
    CHECK_FALSE(member.last_report.held.has_value());
  }
}

TEST_CASE("drift found before a write stays known after the write failed", "[group]") {
  Member member = InPhase('W');
  member.state.OnUnproved();
  member.state.OnWritten(kRound, UnavailableError("x"), true);
  member.Take();
  CHECK_FALSE(member.last_report.live.has_value());
}

TEST_CASE("an engine attached again during a write has unknown memory", "[group]") {
  Member member = InPhase('W');
  member.state.OnEngine(Generation(8));
  member.state.OnWritten(kRound, OkStatus(), false);
  member.Take();
  CHECK_FALSE(member.state.live().has_value());
  CHECK(member.last_report.generation == Generation(8));
}

TEST_CASE("a PREPARE during a write waits for its end", "[group]") {
  Member member = InPhase('W');
  member.Down(8, GroupPrepare{.target = At(6)});
  CHECK(member.Phase() == 'W');
  member.Did();
  member.state.OnWritten(kRound, OkStatus(), false);
  member.Take();
  CHECK(member.Did() == "Cf");
  CHECK(member.Phase() == 'F');
}

TEST_CASE("a member refuses a lower version of the same stream", "[group]") {
  Member member = InPhase('I');
  member.Down(5, GroupPrepare{.target = At(3)});
  CHECK(member.Did() == "U");
  member.Down(6, GroupPrepare{.target = At(1, kNew)});
  CHECK(member.Did() == "f");
}

TEST_CASE("every event in every phase of a member leads to the right phase", "[group]") {
  struct Case {
    const char* event;
    std::function<void(Member&)> act;
    std::string after;  // in I, F, S, W, E
  };
  const auto staged = [](GroupNonce round, Status status) {
    return [=](Member& m) { m.state.OnStaged(round, std::nullopt, status); };
  };
  const auto written = [](GroupNonce round, Status status) {
    return [=](Member& m) { m.state.OnWritten(round, status, false); };
  };
  const Status error = UnavailableError("x");
  const Case cases[] = {
      {"nothing", [](Member&) {}, "IFSWE"},
      {"PREPARE", [](Member& m) { m.Down(9, GroupPrepare{.target = At(6)}); }, "FFFWE"},
      {"PREPARE of an old nonce", [](Member& m) { m.Down(1, GroupPrepare{.target = At(6)}); },
       "IFSWE"},
      {"PREPARE on an old connection",
       [](Member& m) { m.Down(9, GroupPrepare{.target = At(6)}, ConnectionId(1)); }, "IFSWE"},
      {"PREPARE of a committed version",
       [](Member& m) { m.Down(9, GroupPrepare{.target = At(3)}); }, "IIIWE"},
      {"COMMIT", [](Member& m) { m.Down(9, GroupCommit{.round = kRound}); }, "IFWWE"},
      {"COMMIT of another round", [](Member& m) { m.Down(9, GroupCommit{.round = GroupNonce(4)}); },
       "IFSWE"},
      {"COMMIT of an old nonce", [](Member& m) { m.Down(1, GroupCommit{.round = kRound}); },
       "IFSWE"},
      {"COMMIT on an old connection",
       [](Member& m) { m.Down(9, GroupCommit{.round = kRound}, ConnectionId(1)); }, "IFSWE"},
      {"ABORT", [](Member& m) { m.Down(9, GroupAbort{.round = kRound}); }, "IIIWE"},
      {"ABORT of another round", [](Member& m) { m.Down(9, GroupAbort{.round = GroupNonce(4)}); },
       "IFSWE"},
      {"ABORT of an old nonce", [](Member& m) { m.Down(1, GroupAbort{.round = kRound}); }, "IFSWE"},
      {"RESUME",
       [](Member& m) { m.Down(9, GroupResume{.version = At(4), .generation = kGeneration}); },
       "IFSWE"},
      {"END", [](Member& m) { m.Down(9, GroupEnd{.reason = "x"}); }, "EEEEE"},
      {"staged", staged(kRound, OkStatus()), "ISSWE"},
      {"not staged", staged(kRound, error), "IISWE"},
      {"staged for an old round", staged(GroupNonce(4), OkStatus()), "IFSWE"},
      {"written", written(kRound, OkStatus()), "IFSIE"},
      {"not written", written(kRound, error), "IFSIE"},
      {"written for an old round", written(GroupNonce(4), OkStatus()), "IFSWE"},
      {"a new engine", [](Member& m) { m.state.OnEngine(Generation(8)); }, "IIIWE"},
      {"the engine goes", [](Member& m) { m.state.OnEngine(std::nullopt); }, "IIIWE"},
      {"proved", [](Member& m) { m.state.OnProved(kGeneration, At(4)); }, "IFSWE"},
      {"proved for an old engine", [](Member& m) { m.state.OnProved(Generation(6), At(9)); },
       "IFSWE"},
      {"drift", [](Member& m) { m.state.OnUnproved(); }, "IIIWE"},
      {"a new connection", [](Member& m) { m.state.OnConnect(ConnectionId(21)); }, "IIIWE"},
      {"the connection ends", [](Member& m) { m.state.OnDisconnect(kConnection); }, "IIIWE"},
      {"an old connection ends", [](Member& m) { m.state.OnDisconnect(ConnectionId(1)); }, "IFSWE"},
  };
  const std::string phases = "IFSWE";
  for (const Case& one : cases) {
    for (size_t p = 0; p < phases.size(); ++p) {
      Member member = InPhase(phases[p]);
      member.Did();
      one.act(member);
      member.Take();
      INFO(one.event << " in phase " << phases[p] << ", did " << member.did);
      CHECK(member.Phase() == one.after[p]);
      // A write starts only by COMMIT in phase S; a writing engine is not released.
      const bool writes = member.did.find('w') != std::string::npos;
      CHECK(writes == (phases[p] == 'S' && std::string(one.event) == "COMMIT"));
      if (member.Phase() == 'W' || member.Phase() == 'E') CHECK_FALSE(member.state.released());
    }
  }
}

}  // namespace dws
