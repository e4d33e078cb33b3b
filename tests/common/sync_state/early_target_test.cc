// Versions that are offered while their senders capture them.
#include <catch2/catch.hpp>
#include <optional>

#include "tests/common/sync_state/subscription_case.h"

namespace dws {
namespace {

// Two ranks that have published version 1 and capture version 2.
struct Capturing {
  Capturing() {
    REQUIRE(state.OnAnnounce(kFirst, 1, Offers(kStream, {1})).ok());
    REQUIRE(state.OnAnnounce(kSecond, 1, Offers(kStream, {1})).ok());
    CHECK_FALSE(early()->in_the_making());
    Captures(kFirst, 2);
    CHECK(early()->version == WeightVersion(1));
    Captures(kSecond, 2);
  }
  void Captures(SenderIndex sender, uint64_t version,
                std::optional<WeightVersion> base = std::nullopt) {
    state.OnReplacing(sender, kStream, RankEpoch(1), WeightVersion(version), base);
  }
  void GivesUp(SenderIndex sender) {
    state.OnReplacing(sender, kStream, RankEpoch(1), std::nullopt);
  }
  std::optional<SyncTarget> early() const { return state.Target(Offered::kInTheMaking); }

  SubscriptionState state = TwoRanks();
};

}  // namespace

TEST_CASE("a version may be read early once every rank captures it or offers it", "[protocol]") {
  Capturing it;
  const auto early = it.early();
  REQUIRE(early->ranks.size() == 2);
  CHECK(early->at() == VersionAt{kStream, WeightVersion(2)});
  CHECK(early->ranks[1].sender == kSecond);
  CHECK(TargetVersion(it.state) == 1);
  CHECK(it.state.Oldest()->version == WeightVersion(1));
  CHECK_FALSE(it.state.TargetAt(WeightVersion(2)).has_value());

  SECTION("the first rank publishes it, then the second") {
    REQUIRE(it.state.OnAnnounce(kFirst, 2, Offers(kStream, {1, 2})).ok());
    CHECK(it.early()->version == WeightVersion(2));
    CHECK_FALSE(it.early()->ranks[0].in_the_making());
    CHECK(it.early()->ranks[1].in_the_making());
    REQUIRE(it.state.OnAnnounce(kSecond, 2, Offers(kStream, {1, 2})).ok());
    CHECK_FALSE(it.early()->in_the_making());
    CHECK(TargetVersion(it.state) == 2);
  }
  SECTION("the second rank's is a delta") {
    CHECK_FALSE(early->ranks[1].base.has_value());
    it.Captures(kSecond, 2, WeightVersion(1));
    CHECK(it.early()->ranks[1].base == WeightVersion(1));
    CHECK_FALSE(it.early()->ranks[0].base.has_value());
    REQUIRE(it.state.OnAnnounce(kSecond, 2, Offers(kStream, {1, 2})).ok());
    CHECK_FALSE(it.early()->ranks[1].base.has_value());
  }
  SECTION("a rank gives it up") {
    it.state.OnReplacing(kSecond, kTwin, RankEpoch(1), std::nullopt);    // another stream
    it.state.OnReplacing(kSecond, kStream, RankEpoch(2), std::nullopt);  // another epoch
    CHECK(it.early()->version == WeightVersion(2));
    it.GivesUp(kSecond);
    CHECK(it.early()->version == WeightVersion(1));
  }
  SECTION("a sender is lost, or welcomes again") {
    it.state.OnDisconnect(kSecond);
    CHECK_FALSE(it.early().has_value());
    it.state.OnConnect(kSecond);
    REQUIRE(it.state.OnWelcome(kSecond, Welcome(kStream, 1, 2), kNow).ok());
    CHECK_FALSE(it.early().has_value());
  }
}

TEST_CASE("a rank that captures the next version still offers the one before", "[protocol]") {
  Capturing it;
  it.Captures(kFirst, 2, WeightVersion(1));
  it.Captures(kFirst, 3, WeightVersion(2));
  CHECK(it.early()->version == WeightVersion(2));
  CHECK(it.early()->ranks[0].base == WeightVersion(1));
  CHECK(it.early()->ranks[0].captured);
  CHECK_FALSE(it.early()->ranks[1].captured);
  uint64_t offered = 1;
  SECTION("until it publishes it") {
    REQUIRE(it.state.OnAnnounce(kFirst, 2, Offers(kStream, {1, 2})).ok());
    CHECK(it.early()->version == WeightVersion(2));
    CHECK_FALSE(it.early()->ranks[0].in_the_making());
    it.GivesUp(kSecond);
  }
  SECTION("until it publishes the next one") {
    REQUIRE(it.state.OnAnnounce(kFirst, 2, Offers(kStream, {1, 3})).ok());
    it.Captures(kFirst, 2);  // told too late
  }
  SECTION("until it gives both up") { it.GivesUp(kFirst); }
  SECTION("and captures it again") {
    it.Captures(kFirst, 2);
    CHECK_FALSE(it.early()->ranks[0].captured);
    it.Captures(kSecond, 3);
    offered = 2;
  }
  SECTION("but not any number of them") {
    for (uint64_t version = 4; version < 1000; ++version) it.Captures(kFirst, version);
    CHECK(it.state.senders()[0].making.size() < 10);
    CHECK(it.early()->version == WeightVersion(1));
    it.Captures(kSecond, 999);
    offered = 999;
  }
  CHECK(it.early()->version == WeightVersion(offered));
}

}  // namespace dws
