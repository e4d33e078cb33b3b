#include "common/sync_state/subscription_state.h"

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "common/model/limits.h"
#include "tests/common/sync_state/subscription_case.h"

namespace dws {
namespace {

std::shared_ptr<const RankLayout> Cut(const RankLayout& layout, const CutWishes& cuts) {
  return std::make_shared<const RankLayout>(*Refined(layout, cuts));
}

}  // namespace

TEST_CASE("the target is the newest version that all ranks offer", "[protocol]") {
  SubscriptionState state = TwoRanks();
  CHECK_FALSE(state.Target().has_value());
  REQUIRE(state.OnAnnounce(kFirst, 7, Offers(kStream, {1, 2, 3})).ok());
  CHECK_FALSE(state.Target().has_value());
  REQUIRE(state.OnAnnounce(kSecond, 9, Offers(kStream, {1, 2})).ok());

  const auto target = state.Target();
  REQUIRE(target.has_value());
  CHECK(target->stream == kStream);
  CHECK(target->version == WeightVersion(2));
  REQUIRE(target->ranks.size() == 2);
  CHECK(target->ranks[0].sender == kFirst);
  CHECK(target->ranks[0].nonce == 7);
  CHECK(target->ranks[1].nonce == 9);
}

TEST_CASE("a version that some rank never published is skipped", "[protocol]") {
  SubscriptionState state = TwoRanks();
  REQUIRE(state.OnAnnounce(kFirst, 1, Offers(kStream, {3, 5})).ok());
  REQUIRE(state.OnAnnounce(kSecond, 1, Offers(kStream, {3, 4})).ok());
  CHECK(TargetVersion(state) == 3);
  CHECK_FALSE(state.TargetAt(WeightVersion(4)).has_value());
}

TEST_CASE("the oldest version is the first that all ranks offer", "[protocol]") {
  SubscriptionState state = TwoRanks();
  REQUIRE(state.OnAnnounce(kFirst, 1, Offers(kStream, {1, 3, 5})).ok());
  CHECK_FALSE(state.Oldest().has_value());
  REQUIRE(state.OnAnnounce(kSecond, 1, Offers(kStream, {2, 3, 5})).ok());
  REQUIRE(state.Oldest().has_value());
  CHECK(state.Oldest()->version == WeightVersion(3));
}

TEST_CASE("a newer announcement replaces the older one", "[protocol]") {
  SubscriptionState state = TwoRanks();
  REQUIRE(state.OnAnnounce(kFirst, 1, Offers(kStream, {1, 2})).ok());
  REQUIRE(state.OnAnnounce(kSecond, 1, Offers(kStream, {1, 2})).ok());
  REQUIRE(state.OnAnnounce(kSecond, 2, Offers(kStream, {3})).ok());
  CHECK_FALSE(state.Target().has_value());
  REQUIRE(state.OnAnnounce(kFirst, 2, Offers(kStream, {2, 3})).ok());
  CHECK(TargetVersion(state) == 3);
}

TEST_CASE("a sender's rank does not depend on its place in the list", "[protocol]") {
  SubscriptionState state(2, std::nullopt);
  state.OnConnect(kFirst);
  state.OnConnect(kSecond);
  REQUIRE(state.OnWelcome(kFirst, Welcome(kStream, 1, 2), kNow).ok());
  REQUIRE(state.OnWelcome(kSecond, Welcome(kStream, 0, 2), kNow).ok());
  REQUIRE(state.OnAnnounce(kFirst, 1, Offers(kStream, {1})).ok());
  REQUIRE(state.OnAnnounce(kSecond, 2, Offers(kStream, {1})).ok());
  const auto target = state.Target();
  REQUIRE(target.has_value());
  CHECK(target->ranks[0].sender == kSecond);
  CHECK(target->ranks[1].sender == kFirst);
}

TEST_CASE("an old incarnation and a second id are refused", "[protocol]") {
  SubscriptionState state = TwoRanks();
  REQUIRE(state.OnAnnounce(kFirst, 1, Offers(kStream, {1})).ok());
  REQUIRE(state.OnAnnounce(kSecond, 1, Offers(kStream, {1})).ok());

  const Status old = state.OnWelcome(kSecond, Welcome(kOld, 1, 2), kNow);
  CHECK(absl::IsFailedPrecondition(old));
  CHECK(Message(old).find("old trainer") != std::string_view::npos);
  CHECK(state.stream() == kStream);
  CHECK_FALSE(state.Target().has_value());
  CHECK_FALSE(state.senders()[1].refusal.empty());

  CHECK(absl::IsFailedPrecondition(state.OnWelcome(kSecond, Welcome(kTwin, 1, 2), kNow)));
  CHECK(absl::IsFailedPrecondition(state.OnAnnounce(kSecond, 2, Offers(kTwin, {1}))));
}

TEST_CASE("the stream that the ledger accepted fences others after a restart", "[protocol]") {
  SubscriptionState state(1, kStream);
  state.OnConnect(kFirst);
  CHECK(absl::IsFailedPrecondition(state.OnWelcome(kFirst, Welcome(kOld, 0, 1), kNow)));
  CHECK(absl::IsFailedPrecondition(state.OnWelcome(kFirst, Welcome(kTwin, 0, 1), kNow)));
  CHECK(state.OnWelcome(kFirst, Welcome(kStream, 0, 1), kNow).ok());
}

TEST_CASE("a higher incarnation replaces everything, rank by rank", "[protocol]") {
  SubscriptionState state = TwoRanks();
  REQUIRE(state.OnAnnounce(kFirst, 1, Offers(kStream, {9})).ok());
  REQUIRE(state.OnAnnounce(kSecond, 1, Offers(kStream, {9})).ok());
  REQUIRE(state.OnWelcome(kFirst, Welcome(kNew, 0, 2, 1, Layout("another")), kNow).ok());
  CHECK(state.stream() == kNew);
  CHECK_FALSE(state.Target().has_value());
  CHECK_FALSE(state.Layouts().has_value());
  // The other rank still talks of the old stream.
  CHECK(absl::IsFailedPrecondition(state.OnAnnounce(kSecond, 2, Offers(kStream, {10}))));

  REQUIRE(state.OnWelcome(kSecond, Welcome(kNew, 1, 2), kNow).ok());
  REQUIRE(state.OnAnnounce(kFirst, 2, Offers(kNew, {1})).ok());
  REQUIRE(state.OnAnnounce(kSecond, 3, Offers(kNew, {1})).ok());
  CHECK(TargetVersion(state) == 1);
}

TEST_CASE("a layout may not change inside a stream", "[protocol]") {
  SubscriptionState state = TwoRanks();
  const Status changed =
      state.OnWelcome(kFirst, Welcome(kStream, 0, 2, 2, Layout("rank0", 16)), kNow);
  CHECK(absl::IsFailedPrecondition(changed));
  CHECK(Message(changed).find("higher incarnation") != std::string_view::npos);
}

TEST_CASE("a higher rank epoch may cut otherwise what the rank has, the same epoch may not",
          "[protocol]") {
  SubscriptionState state = TwoRanks();
  REQUIRE(state.OnAnnounce(kFirst, 1, Offers(kStream, {1})).ok());
  const auto finer = Cut(*Layout("rank0"), {{"rank0", {{.dim = 0, .at = {2}}}}});
  const Status same = state.OnWelcome(kFirst, Welcome(kStream, 0, 2, 1, finer), kNow);
  CHECK(absl::IsFailedPrecondition(same));
  REQUIRE(state.OnWelcome(kFirst, Welcome(kStream, 0, 2, 2, finer), kNow).ok());
  CHECK((*state.Layouts())[0] == finer);
  CHECK(state.senders()[0].offers.empty());
  // And a sender that has started again has the declared layout.
  REQUIRE(state.OnWelcome(kFirst, Welcome(kStream, 0, 2, 3), kNow).ok());
}

TEST_CASE("each sender is asked for the cuts that its layout lacks of what is wanted",
          "[protocol]") {
  const auto shared = Layout("shared");
  SubscriptionState state(2, std::nullopt);
  state.OnConnect(kFirst);
  state.OnConnect(kSecond);
  REQUIRE(state.OnWelcome(kFirst, Welcome(kStream, 0, 2, 1, shared), kNow).ok());
  REQUIRE(state.OnWelcome(kSecond, Welcome(kStream, 1, 2, 1, Layout("own")), kNow).ok());
  using Needed = SubscriptionState::Needed;
  const CutWishes halves = {{"shared", {{.dim = 0, .at = {4}}}}};
  CHECK(state.Want(Needed::kToAttach, halves));
  CHECK_FALSE(state.Want(Needed::kToAttach, halves));
  CHECK(state.Lacking(kFirst) == halves);
  CHECK(state.senders()[0].lacks_cuts);
  CHECK(state.Lacking(kSecond).empty());
  CHECK_FALSE(state.senders()[1].lacks_cuts);
  // The cuts are only requested once every rank that lacks them could make them; until then no
  // sender is disturbed.
  CHECK_FALSE(state.AllCanCut());
  state.OnCanCut(kFirst);
  CHECK(state.AllCanCut());
  CHECK_FALSE(state.Cutting());

  // The other ranks must have the cuts that one rank has; then a sender starts again.
  const CutWishes quarters = {{"shared", {{.dim = 0, .at = {2, 4, 6}}}}};
  REQUIRE(state.OnWelcome(kFirst, Welcome(kStream, 0, 2, 2, Cut(*shared, quarters)), kNow).ok());
  CHECK(state.Lacking(kFirst).empty());
  REQUIRE(state.OnWelcome(kFirst, Welcome(kStream, 0, 2, 3, shared), kNow).ok());
  CHECK(state.Lacking(kFirst) == quarters);
  CHECK(state.senders()[0].lacks_cuts);
  CHECK_FALSE(state.AllCanCut());
  CHECK(state.Cutting());

  // The needed cuts go away with the engine, those of layouts with the stream.
  CHECK(state.Want(Needed::kToAttach, {}));
  CHECK(state.Lacking(kFirst) == quarters);
  REQUIRE(state.OnWelcome(kFirst, Welcome(kNew, 0, 2, 1, shared), kNow).ok());
  CHECK(state.Lacking(kFirst).empty());
  CHECK_FALSE(state.senders()[0].lacks_cuts);
  CHECK(state.Want(Needed::kAttached, halves));
  CHECK(state.Cutting());
}

TEST_CASE("of two senders of one rank the one with the higher rank epoch is followed",
          "[protocol]") {
  SubscriptionState state = TwoRanks();
  CHECK(absl::IsFailedPrecondition(state.OnWelcome(kSecond, Welcome(kStream, 0, 2, 1), kNow)));
  REQUIRE(state.OnWelcome(kSecond, Welcome(kStream, 0, 2, 2), kNow).ok());
  CHECK(state.senders()[1].trainer_rank == TrainerRank(0));
  CHECK_FALSE(state.senders()[0].trainer_rank.has_value());
  CHECK(absl::IsFailedPrecondition(state.OnWelcome(kFirst, Welcome(kStream, 0, 2, 1), kNow)));
}

TEST_CASE("a disconnected sender offers nothing and its layout stays known", "[protocol]") {
  SubscriptionState state = TwoRanks();
  REQUIRE(state.OnAnnounce(kFirst, 1, Offers(kStream, {1})).ok());
  REQUIRE(state.OnAnnounce(kSecond, 1, Offers(kStream, {1})).ok());
  state.OnDisconnect(kSecond);
  CHECK_FALSE(state.Target().has_value());
  CHECK(state.Layouts().has_value());

  state.OnConnect(kSecond);
  CHECK_FALSE(state.Target().has_value());
  REQUIRE(state.OnWelcome(kSecond, Welcome(kStream, 1, 2), kNow).ok());
  CHECK_FALSE(state.Target().has_value());
  REQUIRE(state.OnAnnounce(kSecond, 1, Offers(kStream, {1})).ok());
  CHECK(TargetVersion(state) == 1);
}

TEST_CASE("an announcement of another rank epoch than the welcome's is ignored", "[protocol]") {
  SubscriptionState state = TwoRanks();
  CHECK(absl::IsFailedPrecondition(state.OnAnnounce(kFirst, 1, Offers(kStream, {1}, 2))));
  REQUIRE(state.OnWelcome(kFirst, Welcome(kStream, 0, 2, 2), kNow).ok());
  CHECK(state.OnAnnounce(kFirst, 2, Offers(kStream, {1}, 2)).ok());
}

TEST_CASE("a late or repeated announcement does not replace a newer one", "[protocol]") {
  SubscriptionState state = TwoRanks();
  REQUIRE(state.OnAnnounce(kFirst, 5, Offers(kStream, {1, 2})).ok());
  REQUIRE(state.OnAnnounce(kSecond, 1, Offers(kStream, {1, 2})).ok());
  CHECK(absl::IsFailedPrecondition(state.OnAnnounce(kFirst, 5, Offers(kStream, {1}))));
  CHECK(absl::IsFailedPrecondition(state.OnAnnounce(kFirst, 4, Offers(kStream, {1}))));
  CHECK(TargetVersion(state) == 2);
  // A new connection counts from 1 again.
  state.OnConnect(kFirst);
  REQUIRE(state.OnWelcome(kFirst, Welcome(kStream, 0, 2), kNow).ok());
  CHECK(state.OnAnnounce(kFirst, 1, Offers(kStream, {1})).ok());
}

TEST_CASE("senders are accepted once every trainer rank has a connected and welcomed one",
          "[protocol]") {
  SubscriptionState state(2, std::nullopt);
  CHECK_FALSE(state.Accepted());
  state.OnConnect(kFirst);
  state.OnConnect(kSecond);
  CHECK_FALSE(state.Accepted());  // connected is not enough
  REQUIRE(state.OnWelcome(kFirst, Welcome(kStream, 0, 2), kNow).ok());
  CHECK_FALSE(state.Accepted());  // one of two
  REQUIRE(state.OnWelcome(kSecond, Welcome(kStream, 1, 2), kNow).ok());
  CHECK(state.Accepted());  // before any version is offered
  REQUIRE_FALSE(state.OnWelcome(kFirst, Welcome(kOld, 0, 2), kNow).ok());
  CHECK_FALSE(state.Accepted());  // its incarnation is too old
  REQUIRE(state.OnWelcome(kFirst, Welcome(kStream, 0, 2), kNow).ok());
  CHECK(state.Accepted());
  state.OnDisconnect(kSecond);
  CHECK_FALSE(state.Accepted());
}

TEST_CASE("impossible ranks and versions are refused", "[protocol]") {
  SubscriptionState state = TwoRanks();
  CHECK(absl::IsInvalidArgument(state.OnWelcome(kFirst, Welcome(kStream, 2, 2), kNow)));
  CHECK(absl::IsInvalidArgument(state.OnWelcome(kFirst, Welcome(kStream, 0, 0), kNow)));
  // An error that another configuration can fix is not INVALID_ARGUMENT.
  CHECK(absl::IsFailedPrecondition(state.OnWelcome(kFirst, Welcome(kStream, 0, 1), kNow)));
  const Status three = state.OnWelcome(kFirst, Welcome(kNew, 0, 3), kNow);
  CHECK(absl::IsFailedPrecondition(three));
  CHECK(Message(three).find("--sender") != std::string_view::npos);
  REQUIRE(state.OnWelcome(kFirst, Welcome(kStream, 0, 2), kNow).ok());
  CHECK(absl::IsInvalidArgument(state.OnAnnounce(kFirst, 1, Offers(kStream, {2, 2}))));
  CHECK(absl::IsInvalidArgument(state.OnAnnounce(kFirst, 1, Offers(kStream, {0}))));
  CHECK(absl::IsInvalidArgument(state.OnAnnounce(
      kFirst, 1, Offers(kStream, std::vector<uint64_t>(limits::kRetainedVersionsMax + 1, 1)))));
}

TEST_CASE("incarnations and rank epochs ahead of the clock are refused and fence nobody",
          "[protocol]") {
  const auto ahead = [](std::chrono::hours hours) { return kNow.time_since_epoch() + hours; };
  const auto incarnation = [](auto time) {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(time).count());
  };
  SubscriptionState state = TwoRanks();
  for (const uint64_t number : {~uint64_t{0}, incarnation(ahead(std::chrono::hours(25)))}) {
    const StreamId poisoned{.incarnation = number, .id_hi = 6, .id_lo = 6};
    const Status refused = state.OnWelcome(kSecond, Welcome(poisoned, 1, 2), kNow);
    CHECK(absl::IsUnavailable(refused));
    CHECK_THAT(std::string(Message(refused)),
               Catch::Contains("incarnation") && Catch::Contains("ahead of this host's clock"));
  }
  CHECK(state.stream() == kStream);
  const Status epoch = state.OnWelcome(kSecond, Welcome(kStream, 1, 2, ~uint64_t{0}), kNow);
  CHECK(absl::IsUnavailable(epoch));
  CHECK_THAT(std::string(Message(epoch)), Catch::Contains("rank epoch"));
  // The refused epoch did not fence the lower one.
  REQUIRE(state.OnWelcome(kSecond, Welcome(kStream, 1, 2, 2), kNow).ok());

  const StreamId near{
      .incarnation = incarnation(ahead(std::chrono::hours(23))), .id_hi = 6, .id_lo = 6};
  CHECK(state.OnWelcome(kSecond, Welcome(near, 1, 2), kNow).ok());
}

TEST_CASE("a clock that went back does not end a stream that is followed", "[protocol]") {
  const uint64_t now = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(kNow.time_since_epoch()).count());
  const StreamId stream{.incarnation = now, .id_hi = 1, .id_lo = 1};
  SubscriptionState state(1, std::nullopt);
  state.OnConnect(kFirst);
  REQUIRE(state.OnWelcome(kFirst, Welcome(stream, 0, 1, now * 1000), kNow).ok());
  const UnixTime before = kNow - std::chrono::hours(48);
  state.OnDisconnect(kFirst);
  state.OnConnect(kFirst);
  CHECK(state.OnWelcome(kFirst, Welcome(stream, 0, 1, now * 1000), before).ok());
  const StreamId next{.incarnation = now + 1, .id_hi = 1, .id_lo = 2};
  CHECK(absl::IsUnavailable(state.OnWelcome(kFirst, Welcome(next, 0, 1), before)));
}

// Rank epochs are not in the ledger: without the check the first sender after a restart could set
// one that no other reaches.
TEST_CASE("after a restart a rank epoch of the ledger's stream is checked against the clock",
          "[protocol]") {
  const uint64_t now_us = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(kNow.time_since_epoch()).count());
  SubscriptionState state(1, kStream);
  state.OnConnect(kFirst);
  CHECK(absl::IsUnavailable(state.OnWelcome(kFirst, Welcome(kStream, 0, 1, ~uint64_t{0}), kNow)));
  const UnixTime behind = kNow - std::chrono::hours(48);
  CHECK(absl::IsUnavailable(state.OnWelcome(kFirst, Welcome(kStream, 0, 1, now_us), behind)));
  CHECK(state.OnWelcome(kFirst, Welcome(kStream, 0, 1, now_us), kNow)
            .ok());  // once the clock is right
}

TEST_CASE("a sender's state token is only that of its newest version", "[protocol]") {
  SubscriptionState state = TwoRanks();
  const Digest token{.lane0 = 1, .lane1 = 2};
  SenderAnnouncement offers = Offers(kStream, {1, 2});
  offers.newest_token = token;
  REQUIRE(state.OnAnnounce(kFirst, 1, offers).ok());
  REQUIRE(state.OnAnnounce(kSecond, 1, Offers(kStream, {1, 2, 3})).ok());
  CHECK(state.Target()->ranks[0].state_token == token);
  CHECK_FALSE(state.Target()->ranks[1].state_token.has_value());
  CHECK_FALSE(state.TargetAt(WeightVersion(1))->ranks[0].state_token.has_value());
}

TEST_CASE("a sender whose newest version is below the engine's is behind", "[protocol]") {
  SubscriptionState state = TwoRanks();
  const auto behind = [&state](uint64_t version, const StreamId& stream = kStream) {
    return state.Behind({.stream = stream, .version = WeightVersion(version)});
  };
  CHECK_FALSE(behind(5).has_value());  // nothing is offered yet
  REQUIRE(state.OnAnnounce(kFirst, 1, Offers(kStream, {4, 5})).ok());
  REQUIRE(state.OnAnnounce(kSecond, 1, Offers(kStream, {4})).ok());
  CHECK_FALSE(behind(4).has_value());
  CHECK(behind(5) == kSecond);
  CHECK(behind(6) == kFirst);
  CHECK_FALSE(behind(5, kOld).has_value());
  state.OnDisconnect(kSecond);
  CHECK_FALSE(behind(5).has_value());
}

TEST_CASE("a forgotten stream is followed again only after a welcome", "[protocol]") {
  SubscriptionState state = TwoRanks();
  REQUIRE(state.OnAnnounce(kFirst, 1, Offers(kStream, {1})).ok());
  REQUIRE(state.OnAnnounce(kSecond, 1, Offers(kStream, {1})).ok());
  CHECK(absl::IsFailedPrecondition(state.OnWelcome(kSecond, Welcome(kOld, 1, 2), kNow)));
  state.Forget(kOld);
  CHECK(state.stream() == kOld);
  CHECK_FALSE(state.Target().has_value());
  CHECK_FALSE(state.Layouts().has_value());
  CHECK(absl::IsFailedPrecondition(state.OnAnnounce(kFirst, 2, Offers(kStream, {1, 2}))));
  REQUIRE(state.OnWelcome(kSecond, Welcome(kOld, 1, 2), kNow).ok());
  state.Forget(std::nullopt);
  REQUIRE(state.OnWelcome(kFirst, Welcome(kOld, 0, 2), kNow).ok());
}

}  // namespace dws
