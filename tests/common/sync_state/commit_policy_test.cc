// When a staged version may be committed.
#include "common/sync_state/receiver_plan.h"

#include <catch2/catch.hpp>
#include <optional>
#include <string>

namespace dws {
namespace {

constexpr StreamId kStream{.incarnation = 2, .id_hi = 0, .id_lo = 22};
constexpr StreamId kNew{.incarnation = 3, .id_hi = 0, .id_lo = 33};
constexpr CommitPolicy kBoundary{.kind = CommitPolicy::Kind::kBoundary};
constexpr CommitPolicy kTwo{.kind = CommitPolicy::Kind::kMaxBehind, .max_behind = 2};

VersionAt At(uint64_t version, const StreamId& stream = kStream) {
  return {.stream = stream, .version = WeightVersion(version)};
}
CommitView View(std::optional<VersionAt> live, const VersionAt& newest) {
  return {.live = live, .proved = live.has_value(), .resync = false, .newest = newest};
}

}  // namespace

TEST_CASE("a policy reads as it is written", "[policy]") {
  for (const std::string text :
       {"immediate", "boundary", "max-behind:1", "max-behind:4000000000"}) {
    const auto policy = ParseCommitPolicy(text);
    REQUIRE(policy.ok());
    CHECK(ToString(*policy) == text);
    CHECK(policy->holds() == (text != "immediate"));
  }
  CHECK(ParseCommitPolicy("max-behind:2").value() == kTwo);
}

TEST_CASE("what is no policy is refused with what was expected", "[policy]") {
  for (const std::string text : {"max-behind:", "max-behind:0", "max-behind:-1", "max-behind:2x",
                                 "max-behind: 2", "max-behind:99999999999999999999"}) {
    CHECK(std::string(Message(ParseCommitPolicy(text).status())) ==
          "'" + text + "' has to end with a number of versions, 1 or more: max-behind:4");
  }
  for (const std::string text : {"", "Boundary", "max-behind", "max-behind=2", "boundary "}) {
    CHECK_THAT(std::string(Message(ParseCommitPolicy(text).status())),
               Catch::Contains("'" + text + "' is none of immediate, boundary, max-behind:K"));
  }
}

TEST_CASE("an immediate policy holds nothing back", "[policy]") {
  CHECK(MayCommitNow({}, View(At(1), At(2))));
  CHECK(MayCommitNow({}, View(std::nullopt, At(2))));
}

TEST_CASE("between boundaries a proved engine keeps what it has", "[policy]") {
  CHECK_FALSE(MayCommitNow(kBoundary, View(At(1), At(2))));
  CHECK_FALSE(MayCommitNow(kBoundary, View(At(1), At(1'000'000))));
  CHECK_FALSE(MayCommitNow(kBoundary, View(At(1), At(1, kNew))));  // proved, by another stream
}

TEST_CASE("an engine without a proved version is never held back, nor is a resync", "[policy]") {
  for (const CommitPolicy& policy : {kBoundary, kTwo}) {
    CHECK(MayCommitNow(policy, View(std::nullopt, At(2))));
    CommitView drifted = View(At(1), At(1));
    drifted.proved = false;
    CHECK(MayCommitNow(policy, drifted));
    CommitView resync = View(At(1), At(2));
    resync.resync = true;
    CHECK(MayCommitNow(policy, resync));
  }
}

TEST_CASE("an engine is never more versions behind than max-behind says", "[policy]") {
  CHECK_FALSE(MayCommitNow(kTwo, View(At(1), At(2))));
  CHECK_FALSE(MayCommitNow(kTwo, View(At(1), At(3))));
  CHECK(MayCommitNow(kTwo, View(At(1), At(4))));
  CHECK_FALSE(MayCommitNow(kTwo, View(At(5), At(4))));  // an old announcement
}

TEST_CASE("in a new stream an engine is behind by all of its versions", "[policy]") {
  CHECK(VersionsBehind(At(9), At(2, kNew)) == 2);
  CHECK(VersionsBehind(std::nullopt, At(3)) == 3);
  CHECK(VersionsBehind(At(3), At(3)) == 0);
  CHECK_FALSE(MayCommitNow(kTwo, View(At(9), At(2, kNew))));
  CHECK(MayCommitNow(kTwo, View(At(9), At(3, kNew))));
}

}  // namespace dws
