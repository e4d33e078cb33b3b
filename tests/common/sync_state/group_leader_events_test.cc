// The leader of a commit group: every event in every phase.
#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <vector>

#include "tests/common/sync_state/leader_of_two.h"

namespace dws {
namespace {

// An event, and the phase after it when it happens in '-', S, D, P, C, c.
struct Case {
  const char* event;
  std::function<void(Group&)> act;
  std::string after;
};

// Messages of member 1.
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

// Events of connections, of the leader's own shell and of its operator.
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

TEST_CASE("every event in every phase of a leader leads to the right phase", "[group]") {
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
      // COMMIT only after a pause that was asked for, and no ABORT after a COMMIT.
      if (phases[p] != 'P') CHECK(group.did.find('C') == std::string::npos);
      if (phases[p] == 'C' || phases[p] == 'c') CHECK(group.did.find('A') == std::string::npos);
    }
  }
}

}  // namespace dws
