// A few hundred seeds of the simulation, and proof that it detects each broken rule.
// tools/simulate.sh runs more.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/simulation/noticed.h"
#include "tests/simulation/world.h"

namespace dws::sim {
namespace {

constexpr uint64_t kSeeds = 400;
// A broken rule must be detected within this many seeds.
constexpr uint64_t kMutantSeeds = 10'000;

void ExpectNoticed(Mutation mutation, const std::vector<std::string>& violations) {
  ExpectNoticedBy<World>(mutation, kMutantSeeds, violations);
}

constexpr const char* kWrongBytes = "generates with bytes that are not";
constexpr const char* kNotInTime = "in time after the faults stopped";

}  // namespace

TEST_CASE("under all faults no engine generates with wrong bytes and all engines catch up",
          "[simulation]") {
  const Found found = FirstViolation<World>(Mutation::kNone, kSeeds);
  INFO("tools/simulate.sh --first " << found.seed << " --seeds 1: " << found.violation);
  CHECK(found.seed == 0);
}

TEST_CASE("every situation that the rules handle occurs", "[simulation]") {
  std::map<std::string_view, uint64_t> seen;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    World world({.seed = seed});
    world.Run();
    for (const auto& [what, times] : world.seen) seen[what] += times;
  }
  for (const char* what : {"a squash is served",
                           "a moving snapshot is read",
                           "an old stream is refused",
                           "an engine keeps what it had",
                           "bytes are staged",
                           "a slice of a delta is rejected",
                           "a full tensor is rejected",
                           "a delta is too large to stage",
                           "a commit is abandoned",
                           "a commit is torn",
                           "a group commits",
                           "a group aborts",
                           "a group loses a member in a COMMIT",
                           "a member cannot write",
                           "a leader starts with a decision open",
                           "a record that nobody was told of is found",
                           "an engine is held",
                           "a held version is replaced",
                           "an engine commits at a boundary",
                           "a group holds a round",
                           "a held round is replaced",
                           "a source of deltas fails",
                           "a source of full tensors fails",
                           "a source lies",
                           "a source ends in the middle"}) {
    INFO(what);
    CHECK(seen[what] > 0);
  }
}

TEST_CASE("one seed always gives the same course of events", "[simulation]") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    World quiet({.seed = seed});
    World traced({.seed = seed, .trace = true});
    CHECK(quiet.Run() == traced.Run());
    CHECK(quiet.events.happened() == traced.events.happened());
    CHECK(quiet.random.Next() == traced.random.Next());
  }
}

TEST_CASE("the simulation detects a delta that is staged on another base", "[simulation]") {
  ExpectNoticed(Mutation::kSkipBaseCheck, {kWrongBytes});
}

TEST_CASE("the simulation detects full tensors of a moving snapshot that are not compared",
          "[simulation]") {
  ExpectNoticed(Mutation::kSkipFullCheck, {kWrongBytes});
}

TEST_CASE("the simulation detects an attach that trusts the ledger's last commit", "[simulation]") {
  ExpectNoticed(Mutation::kTrustLedger, {kWrongBytes});
}

TEST_CASE("the simulation detects an engine that resumes after a torn commit", "[simulation]") {
  ExpectNoticed(Mutation::kResumeTorn, {kWrongBytes});
}

TEST_CASE("the simulation detects an attach that trusts the state of the previous engine",
          "[simulation]") {
  ExpectNoticed(Mutation::kIgnoreGeneration, {kWrongBytes, "and its engine does not hold that"});
}

TEST_CASE("the simulation detects receiver records that are not synced", "[simulation]") {
  ExpectNoticed(Mutation::kDropFsync, {"went back"});
}

TEST_CASE("the simulation detects a late answer that counts for the last COMMIT", "[simulation]") {
  ExpectNoticed(Mutation::kAcceptStaleNonce, {kWrongBytes});
}

TEST_CASE("the simulation detects a group that runs on after losing a member in a COMMIT",
          "[simulation]") {
  ExpectNoticed(Mutation::kReleaseAfterLoss, {kWrongBytes});
}

TEST_CASE("the simulation detects a torn engine that is taken to be at its version",
          "[simulation]") {
  ExpectNoticed(Mutation::kKeepTorn, {"and its memory is not"});
}

TEST_CASE("the simulation detects a commit that its group's leader has not recorded",
          "[simulation]") {
  ExpectNoticed(Mutation::kSkipDecision, {"which its group has not decided"});
}

TEST_CASE("the simulation detects a receiver that stages past its cap", "[simulation]") {
  ExpectNoticed(Mutation::kStageTooMuch, {"its cap is"});
}

TEST_CASE("the simulation detects a commit between two boundaries", "[simulation]") {
  ExpectNoticed(Mutation::kIgnorePolicy, {"commits between two boundaries"});
}

TEST_CASE("the simulation detects a sender that retains without a limit", "[simulation]") {
  ExpectNoticed(Mutation::kRetainEverything, {"its cap is"});
}

TEST_CASE("the simulation detects a receiver that asks one source only", "[simulation]") {
  ExpectNoticed(GENERATE(Mutation::kOneDeltaSource, Mutation::kOneFullSource), {kNotInTime});
}

TEST_CASE("the simulation detects a receiver that does not connect again", "[simulation]") {
  ExpectNoticed(Mutation::kNeverReconnect, {kNotInTime});
}

}  // namespace dws::sim
