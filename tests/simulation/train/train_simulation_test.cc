// A few hundred seeds of on-demand training, and proof that the simulation detects each broken
// rule. tools/simulate.sh --model train runs more.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/simulation/noticed.h"
#include "tests/simulation/train/train_world.h"

namespace dws::sim {
namespace {

constexpr uint64_t kSeeds = 300;
// A broken rule must be detected within this many seeds.
constexpr uint64_t kMutantSeeds = 5'000;

void ExpectNoticed(Mutation mutation, const std::vector<std::string>& violations) {
  ExpectNoticedBy<TrainWorld>(mutation, kMutantSeeds, violations);
}

constexpr const char* kWrongSum = "is sealed in";
constexpr const char* kWrongStep = "Step of";
constexpr const char* kTwoDecisions = "two decisions";
constexpr const char* kGathersWrong = "gathers version";
constexpr const char* kNotInTime = "in time after the faults stopped";
constexpr const char* kSlow = "is stopped, and the leader waits for";
constexpr const char* kAbandoned = "an attempt was abandoned for a slow";

}  // namespace

TEST_CASE("under all faults each minibatch has one decision about exactly what was pushed",
          "[simulation]") {
  const Found found = FirstViolation<TrainWorld>(Mutation::kNone, kSeeds);
  INFO("tools/simulate.sh --model train --first " << found.seed
                                                  << " --seeds 1: " << found.violation);
  CHECK(found.seed == 0);
}

TEST_CASE("every situation that the rules of training handle occurs", "[simulation]") {
  std::map<std::string_view, uint64_t> seen;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    TrainWorld world({.seed = seed});
    world.Run();
    for (const auto& [what, times] : world.seen) seen[what] += times;
  }
  for (const char* what : {"a step is decided",
                           "a gradient is not finite",
                           "an attempt is abandoned",
                           "a leader dies when it has decided",
                           "a sender dies when Step is decided",
                           "a rank finds the sealed gradient",
                           "a sender finds its record",
                           "a rank and its sender are both lost",
                           "a gradient is lost",
                           "a rank waits for its sender to publish",
                           "a rank waits for a slot",
                           "a rank has no microbatch",
                           "a rank asks to abandon",
                           "a piece is missing",
                           "a piece is offered again",
                           "a piece comes twice",
                           "a unit is busy",
                           "an add ends after its attempt",
                           "an offer comes before its attempt is open",
                           "the sums of a host are sent",
                           "a combiner has nothing to send",
                           "a combiner asks early",
                           "a combiner asks when the rank has finished",
                           "a message is damaged",
                           "a message of the leader is refused",
                           "a message of an attempt that is over",
                           "a message of another incarnation is refused",
                           "the job is started again"}) {
    INFO(what);
    CHECK(seen[what] > 0);
  }
}

TEST_CASE("one seed of training always gives the same course of events", "[simulation]") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    TrainWorld quiet({.seed = seed});
    TrainWorld traced({.seed = seed, .trace = true});
    CHECK(quiet.Run() == traced.Run());
    CHECK(quiet.events.happened() == traced.events.happened());
    CHECK(quiet.random.Next() == traced.random.Next());
  }
}

TEST_CASE("the simulation detects pieces of another attempt", "[simulation]") {
  ExpectNoticed(GENERATE(Mutation::kSkipAttempt, Mutation::kMixAttempts, Mutation::kNeverStore),
                {kWrongSum, kNotInTime});
}

TEST_CASE("the simulation detects a piece that is added twice", "[simulation]") {
  ExpectNoticed(Mutation::kSkipNumber, {kWrongSum});
}

TEST_CASE("the simulation detects a number that advances before the add", "[simulation]") {
  ExpectNoticed(Mutation::kAdvanceEarly, {kWrongSum});
}

TEST_CASE("the simulation detects a Finish whose pieces are missing", "[simulation]") {
  ExpectNoticed(Mutation::kForgetCount, {kWrongSum});
}

TEST_CASE("the simulation detects a piece that is added by its owner and by a combiner",
          "[simulation]") {
  ExpectNoticed(Mutation::kTwoRoutes, {kWrongSum});
}

TEST_CASE("the simulation detects an owner that is sealed without the sums of a host",
          "[simulation]") {
  ExpectNoticed(GENERATE(Mutation::kNeverHold, Mutation::kForgetAsked), {kWrongSum, kNotInTime});
}

TEST_CASE("the simulation detects a slot that is used again too early", "[simulation]") {
  ExpectNoticed(Mutation::kFreeEarly, {kWrongSum});
}

TEST_CASE("the simulation detects what is sent only once", "[simulation]") {
  ExpectNoticed(GENERATE(Mutation::kNeverRepeat, Mutation::kTellOnce), {kNotInTime});
}

TEST_CASE("the simulation detects a leader that decides twice", "[simulation]") {
  ExpectNoticed(GENERATE(Mutation::kDecideTwice, Mutation::kForgetStep), {kTwoDecisions});
}

TEST_CASE("the simulation detects a Step of something else than was pushed", "[simulation]") {
  ExpectNoticed(GENERATE(Mutation::kStepEarly, Mutation::kGuessStep, Mutation::kStepInfinite),
                {kWrongStep});
}

TEST_CASE("the simulation detects a leader that takes a slow rank for dead", "[simulation]") {
  ExpectNoticed(GENERATE(Mutation::kSlowIsDead, Mutation::kBlameOthers), {kSlow, kAbandoned});
}

TEST_CASE("the simulation detects a member that joins an attempt which it has lost",
          "[simulation]") {
  ExpectNoticed(GENERATE(Mutation::kJoinQuietly, Mutation::kKeepAttempt, Mutation::kReuseAttempt,
                         Mutation::kFollowAnyEpoch),
                {kWrongSum, kNotInTime, kGathersWrong, kTwoDecisions});
}

TEST_CASE("the simulation detects a member that follows a leader which was replaced",
          "[simulation]") {
  ExpectNoticed(Mutation::kFollowAnyTerm, {kTwoDecisions});
}

TEST_CASE("the simulation detects messages of another incarnation that count", "[simulation]") {
  ExpectNoticed(Mutation::kFollowAnyJob, {kWrongSum, kWrongStep, kNotInTime});
}

}  // namespace dws::sim
