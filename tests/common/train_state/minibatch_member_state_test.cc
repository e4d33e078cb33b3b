#include "common/train_state/minibatch_member_state.h"

#include <catch2/catch.hpp>

#include "tests/common/train_state/train_samples.h"

namespace dws {
namespace {

using Phase = MinibatchMemberState::Phase;

const TrainerRank kRank(3);
const SealedGradient kSealed{.sum_squares = 25, .weight = 8, .finite = true};

// A member whose rank holds version 4 and is in the first attempt of all.
MinibatchMemberState Joined() {
  MinibatchMemberState member(kRank, RankEpoch(1), std::nullopt);
  REQUIRE(member.OnRank(WeightVersion(4)).ok());
  REQUIRE(member.OnDown(Down(Open(At(1, 1)))).ok());
  return member;
}

MinibatchMemberState Sealed() {
  MinibatchMemberState member = Joined();
  REQUIRE(member.OnFinished(At(1, 1)).ok());
  REQUIRE(member.OnSealed(At(1, 1), kSealed).ok());
  return member;
}

MinibatchMemberState Stepped(bool finite = true) {
  MinibatchMemberState member = Sealed();
  StepDecision step = StepOf(At(1, 1), finite ? 5 : 0);
  step.finite = finite;
  REQUIRE(member.OnDown(Down(step)).ok());
  return member;
}

}  // namespace

TEST_CASE("a member without a record reports its version and joins when the leader says",
          "[train]") {
  MinibatchMemberState member(kRank, RankEpoch(7), std::nullopt);
  CHECK_FALSE(member.Report().has_value());
  CHECK(member.WaitsFor() == "rank 3 to register");
  CHECK(member.OnRank(WeightVersion(4)).ok());
  REQUIRE(member.Report().has_value());
  CHECK(member.Report()->epoch == RankEpoch(7));
  CHECK(member.phase() == Phase::kJoining);
  CHECK(member.OnDown(Down(Open(At(1, 2)), 1, 7)).ok());
  CHECK(member.phase() == Phase::kOpen);
  CHECK(member.open());
  CHECK(member.record().attempt == At(1, 2));
}

TEST_CASE("each change is to be recorded and has a higher sequence", "[train]") {
  MinibatchMemberState member = Joined();
  CHECK(member.TakeChanged());
  CHECK_FALSE(member.TakeChanged());
  const uint64_t before = member.Report()->sequence;
  CHECK(member.OnFinished(At(1, 1)).ok());
  CHECK(member.OnFinished(At(1, 1)).ok());
  CHECK(member.Report()->sequence == before + 1);
  CHECK(member.Report()->finished);
  CHECK(member.TakeChanged());
}

TEST_CASE("after Step the rank publishes the next version and the next minibatch opens",
          "[train]") {
  MinibatchMemberState member = Stepped();
  CHECK(member.phase() == Phase::kStepped);
  CHECK(member.WaitsFor() == "rank 3 to publish version 5");
  CHECK(absl::IsFailedPrecondition(member.OnPublished(2, WeightVersion(5))));
  CHECK(absl::IsFailedPrecondition(member.OnPublished(1, WeightVersion(6))));
  CHECK(absl::IsFailedPrecondition(member.OnSkipped(1)));
  CHECK(member.OnPublished(1, WeightVersion(5)).ok());
  CHECK(member.record().version == WeightVersion(5));
  CHECK(member.record().attempt == At(2, 1));
  CHECK(member.record().last_step == StepOf(At(1, 1)));
  CHECK_FALSE(member.record().sealed.has_value());
  CHECK_FALSE(member.Report()->finished);
  CHECK(absl::IsFailedPrecondition(member.OnPublished(1, WeightVersion(6))));
}

TEST_CASE("a gradient that is not finite is skipped and the version stays", "[train]") {
  MinibatchMemberState member = Stepped(false);
  CHECK(member.phase() == Phase::kToBeSkipped);
  CHECK(absl::IsFailedPrecondition(member.OnPublished(1, WeightVersion(5))));
  for (int times = 0; times < 2; ++times) {  // the rank may say it again
    CHECK(member.OnSkipped(1).ok());
    CHECK(member.record().version == WeightVersion(4));
    CHECK(member.record().attempt == At(2, 1));
  }
  CHECK(absl::IsFailedPrecondition(member.OnSkipped(2)));
}

TEST_CASE("Abandon opens the next attempt and voids what was sealed", "[train]") {
  MinibatchMemberState member = Sealed();
  CHECK(member.OnDown(Down(Open(At(1, 2)))).ok());
  CHECK(member.record().attempt == At(1, 2));
  CHECK(member.record().version == WeightVersion(4));
  CHECK_FALSE(member.record().sealed.has_value());
  CHECK(absl::IsAborted(member.OnFinished(At(1, 1))));
  CHECK(absl::IsAborted(member.OnSealed(At(1, 1), kSealed)));
  CHECK(absl::IsAborted(member.AskToAbandon(At(1, 1), "late", std::nullopt)));
}

TEST_CASE("a decision that comes again changes nothing", "[train]") {
  MinibatchMemberState member = Stepped();
  member.TakeChanged();
  CHECK(member.OnDown(Down(StepOf(At(1, 1)))).ok());
  CHECK(member.OnDown(Down(Open(At(1, 1)))).ok());
  CHECK_FALSE(member.TakeChanged());
  CHECK(member.OnPublished(1, WeightVersion(5)).ok());
  member.TakeChanged();
  CHECK(member.OnDown(Down(StepOf(At(1, 1)))).ok());
  CHECK(member.OnDown(Down(Open(At(1, 2)))).ok());
  CHECK_FALSE(member.TakeChanged());
}

TEST_CASE("a decision that contradicts another one is refused", "[train]") {
  MinibatchMemberState member = Stepped();
  CHECK(absl::IsFailedPrecondition(member.OnDown(Down(StepOf(At(1, 1), 6)))));
  CHECK(absl::IsFailedPrecondition(member.OnDown(Down(Open(At(1, 2))))));
  CHECK(member.record().step == StepOf(At(1, 1)));
  CHECK(member.OnPublished(1, WeightVersion(5)).ok());
  CHECK(absl::IsFailedPrecondition(member.OnDown(Down(StepOf(At(1, 1), 6)))));
}

TEST_CASE("Step without the sealed gradient is refused", "[train]") {
  MinibatchMemberState member = Joined();
  CHECK(absl::IsFailedPrecondition(member.OnDown(Down(StepOf(At(1, 1))))));
  CHECK(absl::IsFailedPrecondition(member.OnDown(Down(StepOf(At(1, 2))))));
  CHECK(member.phase() == Phase::kOpen);
}

TEST_CASE("a member follows no earlier term than it has promised", "[train]") {
  MinibatchMemberState member = Sealed();
  CHECK(member.OnDown(Down(TrainAsk(), 2)).ok());
  CHECK(member.record().term == LeaderTerm(2));
  CHECK(absl::IsFailedPrecondition(member.OnDown(Down(StepOf(At(1, 1)), 1))));
  CHECK(absl::IsFailedPrecondition(member.OnDown(Down(TrainAsk(), 1))));
  CHECK(member.phase() == Phase::kSealed);
}

TEST_CASE("the next process of a sender takes no decision that was made for the last", "[train]") {
  MinibatchMemberState member(kRank, RankEpoch(2), std::nullopt);
  CHECK(member.OnRank(WeightVersion(4)).ok());
  CHECK(absl::IsFailedPrecondition(member.OnDown(Down(Open(At(1, 1)), 1, 1))));
  CHECK(member.phase() == Phase::kJoining);
}

TEST_CASE("a rank that dies before the decision loses the attempt", "[train]") {
  for (MinibatchMemberState member : {Joined(), Sealed()}) {
    member.OnRankLost();
    CHECK(member.phase() == Phase::kLost);
    CHECK(member.Report()->lost == "the process of rank 3 is gone");
    CHECK(member.Report()->lost_rank == kRank);
    CHECK(absl::IsAborted(member.OnFinished(At(1, 1))));
    CHECK(member.OnRank(WeightVersion(4)).ok());
    CHECK_FALSE(member.open());  // the attempt stays lost
    CHECK(member.OnDown(Down(Open(At(1, 2)))).ok());
    CHECK(member.open());
  }
}

TEST_CASE("a lost attempt is stepped if the leader had decided so before", "[train]") {
  MinibatchMemberState member = Sealed();
  member.OnRankLost();
  CHECK(member.OnDown(Down(StepOf(At(1, 1)))).ok());
  CHECK(member.phase() == Phase::kStepped);
  CHECK(member.WaitsFor() == "rank 3, which is not connected, to publish version 5");
  CHECK(member.OnRank(WeightVersion(4)).ok());
  CHECK(member.OnPublished(1, WeightVersion(5)).ok());
}

TEST_CASE("an attempt that opens while its rank is away waits for it and is not lost", "[train]") {
  MinibatchMemberState member = Joined();
  member.OnRankLost();
  CHECK(member.OnDown(Down(Open(At(1, 2)))).ok());
  member.OnRankLost();
  CHECK(member.phase() == Phase::kOpen);
  CHECK_FALSE(member.open());
  CHECK(member.WaitsFor() == "rank 3 to connect");
  CHECK(member.OnRank(WeightVersion(4)).ok());
  CHECK(member.open());
}

TEST_CASE("a rank that comes back with another version is refused", "[train]") {
  MinibatchMemberState member = Stepped();
  member.OnRankLost();
  CHECK(absl::IsFailedPrecondition(member.OnRank(WeightVersion(3))));
  CHECK(absl::IsFailedPrecondition(member.OnRank(WeightVersion(5))));
  CHECK_FALSE(member.rank_present());
  CHECK(absl::IsInvalidArgument(member.OnRank(WeightVersion(0))));
}

TEST_CASE("a sender that starts again has lost an attempt that is not decided", "[train]") {
  const MemberRecord record = Sealed().record();
  MinibatchMemberState member(kRank, RankEpoch(2), record);
  CHECK(member.TakeChanged());
  CHECK(member.phase() == Phase::kLost);
  CHECK(member.Report()->lost == "the sender of rank 3 started again");
  CHECK(member.record().sealed == kSealed);
  CHECK(member.OnDown(Down(StepOf(At(1, 1)), 1, 2)).ok());  // decided before it died
  CHECK(member.phase() == Phase::kStepped);
}

TEST_CASE("a sender that starts again after Step goes on", "[train]") {
  const MemberRecord record = Stepped().record();
  MinibatchMemberState member(kRank, RankEpoch(2), record);
  CHECK(member.phase() == Phase::kStepped);
  CHECK(member.Report()->lost.empty());
  CHECK(member.OnRank(WeightVersion(4)).ok());
  CHECK(member.OnPublished(1, WeightVersion(5)).ok());
}

TEST_CASE("a rank may ask to abandon until Step is decided", "[train]") {
  MinibatchMemberState member = Sealed();
  CHECK(member.AskToAbandon(At(1, 1), "out of memory", kRank).ok());
  CHECK(member.AskToAbandon(At(1, 1), "again", std::nullopt).ok());
  CHECK(member.Report()->lost == "out of memory");  // the first reason stays
  MinibatchMemberState stepped = Stepped();
  CHECK(absl::IsFailedPrecondition(stepped.AskToAbandon(At(1, 1), "late", kRank)));
}

}  // namespace dws
