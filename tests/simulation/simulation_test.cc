// A few hundred seeds of the simulation, and that it notices when a rule is broken.
// tools/simulate.sh runs more.
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <string_view>

#include "tests/simulation/world.h"

namespace dws::sim {
namespace {

constexpr uint64_t kSeeds = 400;
// A broken rule must be noticed within so many.
constexpr uint64_t kMutantSeeds = 10'000;

// The first seed that violates something, with what it says; 0: none.
struct Found {
  uint64_t seed = 0;
  std::string violation;
};
Found FirstViolation(Mutation mutation, uint64_t seeds) {
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    World world({.seed = seed, .mutation = mutation});
    const std::string violation = world.Run();
    if (!violation.empty()) return {.seed = seed, .violation = violation};
  }
  return {};
}

void ExpectNoticed(Mutation mutation, const std::string& violation) {
  const Found found = FirstViolation(mutation, kMutantSeeds);
  INFO("seed " << found.seed << ": " << found.violation);
  CHECK(found.seed > 0);
  CHECK(found.violation.find(violation) != std::string::npos);
}

constexpr const char* kWrongBytes = "generates with bytes that are not";
constexpr const char* kNotInTime = "in time after the faults stopped";

}  // namespace

TEST_CASE("whatever befalls a job, no engine generates with wrong bytes, and all catch up",
          "[simulation]") {
  const Found found = FirstViolation(Mutation::kNone, kSeeds);
  INFO("tools/simulate.sh --first " << found.seed << " --seeds 1: " << found.violation);
  CHECK(found.seed == 0);
}

TEST_CASE("what the rules are there for comes about", "[simulation]") {
  std::map<std::string_view, uint64_t> seen;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    World world({.seed = seed});
    world.Run();
    for (const auto& [what, times] : world.seen) seen[what] += times;
  }
  for (const char* what :
       {"a squash is served", "a moving snapshot is read", "an old stream is refused",
        "an engine keeps what it had", "a slice of a delta is rejected",
        "a full tensor is rejected", "a delta is too large to stage", "a commit is abandoned",
        "a commit is torn", "a group commits", "a group aborts",
        "a group loses a member in a COMMIT", "a member cannot write",
        "a leader starts with a decision open", "a record that nobody was told of is found"}) {
    INFO(what);
    CHECK(seen[what] > 0);
  }
}

TEST_CASE("one seed is one course of events", "[simulation]") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    World quiet({.seed = seed});
    World traced({.seed = seed, .trace = true});
    CHECK(quiet.Run() == traced.Run());
    CHECK(quiet.events.happened() == traced.events.happened());
    CHECK(quiet.random.Next() == traced.random.Next());
  }
}

TEST_CASE("noticed: a delta is staged on another base", "[simulation]") {
  ExpectNoticed(Mutation::kSkipBaseCheck, kWrongBytes);
}

TEST_CASE("noticed: full tensors of a moving snapshot are not compared", "[simulation]") {
  ExpectNoticed(Mutation::kSkipFullCheck, kWrongBytes);
}

TEST_CASE("noticed: an engine that attaches is believed to have what was committed last",
          "[simulation]") {
  ExpectNoticed(Mutation::kTrustLedger, kWrongBytes);
}

TEST_CASE("noticed: an engine resumes after a torn commit", "[simulation]") {
  ExpectNoticed(Mutation::kResumeTorn, kWrongBytes);
}

TEST_CASE("noticed: an engine that attaches is believed to have what the one before it had",
          "[simulation]") {
  ExpectNoticed(Mutation::kIgnoreGeneration, "");
}

TEST_CASE("noticed: a receiver's records are not synced", "[simulation]") {
  ExpectNoticed(Mutation::kDropFsync, "went back");
}

TEST_CASE("noticed: a late answer of a member counts as its last", "[simulation]") {
  ExpectNoticed(Mutation::kAcceptStaleNonce, kWrongBytes);
}

TEST_CASE("noticed: a group that loses a member in a COMMIT runs on without it", "[simulation]") {
  ExpectNoticed(Mutation::kReleaseAfterLoss, kWrongBytes);
}

TEST_CASE("noticed: a sender retains without a limit", "[simulation]") {
  ExpectNoticed(Mutation::kRetainEverything, "its cap is");
}

TEST_CASE("noticed: a receiver does not connect again", "[simulation]") {
  ExpectNoticed(Mutation::kNeverReconnect, kNotInTime);
}

}  // namespace dws::sim
