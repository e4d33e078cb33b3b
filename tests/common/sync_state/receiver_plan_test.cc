// The step that follows from every combination of what a receiver can know.
#include "common/sync_state/receiver_plan.h"

#include <catch2/catch.hpp>
#include <optional>
#include <vector>

namespace dws {
namespace {

constexpr StreamId kStream{.incarnation = 1, .id_hi = 0, .id_lo = 11};
constexpr StreamId kNew{.incarnation = 2, .id_hi = 0, .id_lo = 22};

VersionAt At(uint64_t version, const StreamId& stream = kStream) {
  return {.stream = stream, .version = WeightVersion(version)};
}
Digest D(uint64_t value) { return {.lane0 = value, .lane1 = ~value}; }
SliceState Held(const Digest& digest) {
  return {.kind = SliceState::Kind::kHeld, .digest = digest};
}
const SliceState kNotHeld;
const SliceState kDiffers{.kind = SliceState::Kind::kDiffers, .digest = {}};

DeltaManifest Manifest(std::vector<SliceDelta> slices, const Digest& token) {
  return {.stream = kStream,
          .trainer_rank = TrainerRank(1),
          .version = WeightVersion(5),
          .base_version = WeightVersion(4),
          .slices = std::move(slices),
          .state_token = token};
}

const std::optional<VersionAt> kLives[] = {std::nullopt, At(4), At(5), At(6), At(5, kNew)};
const std::optional<VersionAt> kTargets[] = {std::nullopt, At(5), At(5, kNew)};

}  // namespace

TEST_CASE("a drained receiver starts no commit whatever is offered or asked", "[protocol]") {
  for (const auto& live : kLives) {
    for (const auto& target : kTargets) {
      for (const bool resync : {false, true}) {
        CHECK(NextStep({.drained = true, .resync = resync, .live = live, .target = target}) ==
              ReceiverStep::kHold);
      }
    }
  }
}

TEST_CASE("a resync comes before every other step", "[protocol]") {
  for (const auto& live : kLives) {
    for (const auto& target : kTargets) {
      CHECK(NextStep({.resync = true, .live = live, .target = target}) == ReceiverStep::kResync);
    }
  }
}

TEST_CASE("an engine at or above the target in the same stream is current", "[protocol]") {
  CHECK(NextStep({.live = At(5), .target = At(5)}) == ReceiverStep::kCurrent);
  CHECK(NextStep({.live = At(6), .target = At(5)}) == ReceiverStep::kCurrent);
  CHECK(NextStep({.live = At(4), .target = At(5)}) == ReceiverStep::kAdvance);
  CHECK(NextStep({.live = At(9), .target = At(5, kNew)}) == ReceiverStep::kAdvance);
}

TEST_CASE("without a target a proved engine is current and any other waits", "[protocol]") {
  CHECK(NextStep({.live = At(5)}) == ReceiverStep::kCurrent);
  CHECK(NextStep({.live = At(5), .drifted = true}) == ReceiverStep::kAwait);
  CHECK(NextStep({}) == ReceiverStep::kAwait);
}

TEST_CASE("a drifted engine is committed again even at the newest version", "[protocol]") {
  CHECK(NextStep({.live = At(5), .drifted = true, .target = At(5)}) == ReceiverStep::kAdvance);
  CHECK(NextStep({.live = At(6), .drifted = true, .target = At(5)}) == ReceiverStep::kAdvance);
}

TEST_CASE("memory of no known version may be adopted as the last commit", "[protocol]") {
  CHECK(NextStep({.target = At(5)}) == ReceiverStep::kAdopt);
  CHECK(Adoptable(std::nullopt, At(4), At(5)) == At(4));
  CHECK_FALSE(Adoptable(std::nullopt, At(5), At(5)).has_value());
  CHECK_FALSE(Adoptable(std::nullopt, At(6), At(5)).has_value());
  CHECK_FALSE(Adoptable(std::nullopt, At(4, kNew), At(5)).has_value());
  CHECK_FALSE(Adoptable(std::nullopt, std::nullopt, At(5)).has_value());
}

TEST_CASE("with an open intent memory may be adopted only as the intent's version", "[protocol]") {
  CHECK(Adoptable(At(6), At(5), At(9)) == At(6));
  // Not 5: the engine may already have reported 9, whatever its memory is now.
  CHECK_FALSE(Adoptable(At(9), At(5), At(9)).has_value());
  CHECK_FALSE(Adoptable(At(9), std::nullopt, At(9)).has_value());
  CHECK_FALSE(Adoptable(At(10), At(5), At(9)).has_value());
  CHECK(Adoptable(At(6, kNew), At(5), At(9)) == At(5));
}

TEST_CASE("a version announced with another state token was published again", "[protocol]") {
  LiveState live;
  live.at = At(5);
  live.ranks.resize(3);
  for (uint32_t r = 0; r < 3; ++r) live.ranks[r].state_token = D(r);
  SyncTarget target{.stream = kStream, .version = WeightVersion(5), .ranks = {}};
  target.ranks.resize(3);
  CHECK(RanksPublishedAgain(live, target).empty());  // no token is announced
  for (uint32_t r = 0; r < 3; ++r) target.ranks[r].state_token = D(r);
  CHECK(RanksPublishedAgain(live, target).empty());
  target.ranks[1].state_token = D(7);
  CHECK(RanksPublishedAgain(live, target) == std::vector{TrainerRank(1)});
  target.version = WeightVersion(6);
  CHECK(RanksPublishedAgain(live, target).empty());
  target.version = WeightVersion(5);
  target.stream = kNew;
  CHECK(RanksPublishedAgain(live, target).empty());
}

TEST_CASE("a delta is requested only from a lower version of the same stream", "[protocol]") {
  CHECK(DeltaBase(Way::kDelta, At(4), At(5)) == WeightVersion(4));
  CHECK_FALSE(DeltaBase(Way::kDelta, At(5), At(5)).has_value());
  CHECK_FALSE(DeltaBase(Way::kDelta, At(6), At(5)).has_value());
  CHECK_FALSE(DeltaBase(Way::kDelta, At(4, kNew), At(5)).has_value());
  CHECK_FALSE(DeltaBase(Way::kDelta, At(4), At(5, kNew)).has_value());
  CHECK_FALSE(DeltaBase(Way::kDelta, std::nullopt, At(5)).has_value());
  CHECK_FALSE(DeltaBase(Way::kDescription, At(4), At(5)).has_value());
  CHECK_FALSE(DeltaBase(Way::kFull, At(4), At(5)).has_value());
}

TEST_CASE("a version of another stream is not used as a version number", "[protocol]") {
  CHECK(VersionIn(At(4), kStream) == WeightVersion(4));
  CHECK_FALSE(VersionIn(At(4), kNew).has_value());
  CHECK_FALSE(VersionIn(std::nullopt, kStream).has_value());
}

TEST_CASE("only errors that a retry cannot fix fall back to full tensors", "[protocol]") {
  for (const Status& status :
       {AbortedError("x"), DataLossError("x"), FailedPreconditionError("x"), NotFoundError("x"),
        InvalidArgumentError("x"), UnimplementedError("x")}) {
    CHECK(FallsBackToFull(status));
  }
  for (const Status& status : {UnavailableError("x"), DeadlineExceededError("x"),
                               CancelledError("x"), ResourceExhaustedError("x"), OkStatus()}) {
    CHECK_FALSE(FallsBackToFull(status));
  }
}

TEST_CASE("a delta object other than the requested one is refused", "[protocol]") {
  const DeltaManifest good = Manifest({}, {});
  const TrainerRank rank(1);
  CHECK(CheckManifest(good, At(5), rank, WeightVersion(4)).ok());
  CHECK(absl::IsDataLoss(CheckManifest(good, At(5, kNew), rank, WeightVersion(4))));
  CHECK(absl::IsDataLoss(CheckManifest(good, At(6), rank, WeightVersion(4))));
  CHECK(absl::IsDataLoss(CheckManifest(good, At(5), TrainerRank(0), WeightVersion(4))));
  CHECK(absl::IsDataLoss(CheckManifest(good, At(5), rank, WeightVersion(3))));
}

TEST_CASE("a delta that does not lead to its state token is refused", "[protocol]") {
  const std::vector<Digest> before = {D(1), D(2)};
  const std::vector<Digest> after = {D(1), D(3)};
  const std::vector<SliceDelta> change = {{.slice = RankSlice(1), .before = D(2), .after = D(3)}};
  const auto followed = Follow(before, Manifest(change, StateToken(after)));
  REQUIRE(followed.ok());
  CHECK(followed->slices == after);
  CHECK(followed->state_token == StateToken(after));
  CHECK(absl::IsDataLoss(Follow({D(9), D(2)}, Manifest(change, StateToken(after))).status()));
}

TEST_CASE("a slice is admitted only with the right base and the predicted result", "[protocol]") {
  const SliceDelta delta{.slice = RankSlice(0), .before = D(1), .after = D(2)};
  CHECK(JudgeSlice(Held(D(1)), delta, D(2)) == SliceVerdict::kAdmitted);
  CHECK(JudgeSlice(Held(D(1)), delta, D(3)) == SliceVerdict::kOtherResult);
  CHECK(JudgeSlice(Held(D(7)), delta, D(2)) == SliceVerdict::kOtherBase);
  CHECK(JudgeSlice(kDiffers, delta, D(2)) == SliceVerdict::kOtherBase);
}

TEST_CASE("the description selects exactly the slices that are held and differ", "[protocol]") {
  const std::vector<SliceState> live = {Held(D(1)), Held(D(2)), kNotHeld, kDiffers};
  const std::vector<Digest> described = {D(1), D(9), D(9), D(4)};
  CHECK(SlicesThatDiffer(live, described) == std::vector<RankSlice>{RankSlice(1), RankSlice(3)});
}

TEST_CASE("drifted slices that a delta does not touch are found", "[protocol]") {
  const LiveState::Rank rank{.slices = {Held(D(8)), Held(D(8)), Held(D(3)), kNotHeld},
                             .published = {D(1), D(2), D(3), D(4)},
                             .state_token = {}};
  const DeltaManifest touches_first =
      Manifest({{.slice = RankSlice(0), .before = D(1), .after = D(5)}}, {});
  CHECK(DriftedUntouched(rank, touches_first) == std::vector<RankSlice>{RankSlice(1)});
  CHECK(DriftedUntouched(rank, Manifest({}, {})) ==
        std::vector<RankSlice>{RankSlice(0), RankSlice(1)});
}

}  // namespace dws
