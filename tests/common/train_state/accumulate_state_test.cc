#include "common/train_state/accumulate_state.h"

#include <catch2/catch.hpp>
#include <limits>

#include "tests/common/train_state/train_samples.h"

namespace dws {
namespace {

using Add = AccumulateState::Add;
using Answer = AccumulateState::Answer;

const TrainerRank kA(0);
const TrainerRank kB(1);

// An owner with two units in a job of two ranks, whose outboxes have three slots.
AccumulateState Opened() {
  AccumulateState owner(2, 2, 3);
  owner.Open(At(1, 1));
  return owner;
}

void AddNext(AccumulateState& owner, TrainerRank rank, uint64_t number, uint32_t unit = 0) {
  REQUIRE(owner.OnOffer(rank, OfferOf(number, unit)).value() == Answer::kQueued);
  REQUIRE(owner.NextPull(rank).has_value());
  REQUIRE(owner.Begin(rank, PullOf(number)) != Add::kStale);
  REQUIRE(owner.Added(rank, PullOf(number)));
}

PushFinish FinishOf(uint64_t count, double weight = 1, AttemptId attempt = At(1, 1)) {
  return {.attempt = attempt, .count = count, .weight = weight};
}

}  // namespace

TEST_CASE("pieces of a rank are pulled one after the other in the order of their numbers",
          "[train]") {
  AccumulateState owner = Opened();
  CHECK_FALSE(owner.NextPull(kA).has_value());
  CHECK(owner.OnOffer(kA, OfferOf(1, 1)).value() == Answer::kQueued);
  CHECK(owner.OnOffer(kA, OfferOf(2)).value() == Answer::kQueued);
  CHECK(owner.NextPull(kA) == OfferOf(1, 1));
  CHECK_FALSE(owner.NextPull(kA).has_value());  // while it is pulled
  CHECK(owner.Begin(kA, PullOf(1)) == Add::kStore);
  CHECK(owner.adding(kA) == UnitIndex(1));
  CHECK_FALSE(owner.NextPull(kA).has_value());  // while it is added
  CHECK(owner.Added(kA, PullOf(1)));
  CHECK(owner.NextPull(kA) == OfferOf(2));
}

TEST_CASE("the number advances when the add has ended and not before", "[train]") {
  AccumulateState owner = Opened();
  CHECK(owner.OnOffer(kA, OfferOf(1)).ok());
  CHECK(owner.OnFinish(kA, FinishOf(1)).ok());
  CHECK(owner.OnFinish(kB, FinishOf(0)).ok());
  CHECK(owner.Begin(kA, PullOf(1)) == Add::kStore);
  CHECK(owner.acknowledged(kA).through == PieceNumber(0));
  CHECK_FALSE(owner.sealed());
  CHECK(owner.Added(kA, PullOf(1)));
  CHECK(owner.acknowledged(kA).through == PieceNumber(1));
  CHECK(owner.sealed());
}

TEST_CASE("a piece that is offered again is acknowledged again and added once", "[train]") {
  AccumulateState owner = Opened();
  AddNext(owner, kA, 1);
  CHECK(owner.OnOffer(kA, OfferOf(1)).value() == Answer::kAcknowledge);
  CHECK(owner.Begin(kA, PullOf(1)) == Add::kStale);
  CHECK(owner.OnOffer(kA, OfferOf(2)).ok());
  CHECK(owner.OnOffer(kA, OfferOf(2)).value() == Answer::kQueued);
  CHECK(owner.queued(kA) == 1);
  CHECK(owner.Begin(kA, PullOf(2)) == Add::kAdd);
  CHECK(owner.Begin(kA, PullOf(2)) == Add::kStale);  // its bytes came twice
}

TEST_CASE("after a gap the missing pieces are asked for", "[train]") {
  AccumulateState owner = Opened();
  CHECK(owner.OnOffer(kA, OfferOf(2)).value() == Answer::kAskAgain);
  CHECK(owner.wanted(kA).from == PieceNumber(1));
  AddNext(owner, kA, 1);
  CHECK(owner.OnOffer(kA, OfferOf(2)).value() == Answer::kQueued);
  CHECK(owner.wanted(kA).from == PieceNumber(3));
}

TEST_CASE("a piece of an attempt that is over is refused by name", "[train]") {
  AccumulateState owner = Opened();
  owner.Open(At(1, 2));
  const Status status = owner.OnOffer(kA, OfferOf(1)).status();
  CHECK(absl::IsAborted(status));
  CHECK(Message(status) ==
        "minibatch 1 attempt 1 of term 1 of rank 0 is over: this owner is at minibatch 1 attempt 2 "
        "of term 1");
  CHECK(absl::IsAborted(owner.OnFinish(kA, FinishOf(0))));
}

TEST_CASE("a piece of the next minibatch is not taken before that is open and then asked for",
          "[train]") {
  AccumulateState owner = Opened();
  CHECK(absl::IsUnavailable(owner.OnOffer(kB, OfferOf(1, 0, At(2, 1))).status()));
  CHECK(absl::IsUnavailable(owner.OnFinish(kB, FinishOf(1, 1, At(2, 1)))));
  CHECK_FALSE(owner.NextPull(kB).has_value());
  CHECK(owner.Open(At(2, 1)) == std::vector<TrainerRank>{kB});
  CHECK(owner.wanted(kB).from == PieceNumber(1));
  CHECK(owner.Open(At(3, 1)).empty());
}

TEST_CASE("the first piece of a unit in each attempt is stored and the others are added",
          "[train]") {
  AccumulateState owner = Opened();
  for (const AttemptId attempt : {At(1, 1), At(1, 2)}) {
    if (attempt != owner.attempt()) owner.Open(attempt);
    CHECK_FALSE(owner.touched(UnitIndex(0)));
    for (const uint64_t number : {1, 2}) {
      REQUIRE(owner.OnOffer(kA, OfferOf(number, 0, attempt)).ok());
      CHECK(owner.Begin(kA, PullOf(number, attempt)) == (number == 1 ? Add::kStore : Add::kAdd));
      CHECK(owner.Added(kA, PullOf(number, attempt)));
    }
    CHECK(owner.touched(UnitIndex(0)));
    CHECK_FALSE(owner.touched(UnitIndex(1)));
  }
}

TEST_CASE("a unit has one add at a time", "[train]") {
  AccumulateState owner = Opened();
  CHECK(owner.OnOffer(kA, OfferOf(1)).ok());
  CHECK(owner.OnOffer(kB, OfferOf(1)).ok());
  CHECK(owner.Begin(kA, PullOf(1)) == Add::kStore);
  CHECK(owner.Begin(kB, PullOf(1)) == Add::kBusy);
  CHECK(owner.Added(kA, PullOf(1)));
  CHECK(owner.Begin(kB, PullOf(1)) == Add::kAdd);
}

TEST_CASE("no add begins while one of the last attempt goes on", "[train]") {
  AccumulateState owner = Opened();
  CHECK(owner.OnOffer(kA, OfferOf(1)).ok());
  CHECK(owner.Begin(kA, PullOf(1)) == Add::kStore);
  owner.Open(At(1, 2));
  CHECK(owner.OnOffer(kB, OfferOf(1, 1, At(1, 2))).ok());
  CHECK(owner.Begin(kB, PullOf(1, At(1, 2))) == Add::kBusy);
  CHECK_FALSE(owner.Added(kA, PullOf(1)));  // nobody is to be told
  CHECK(owner.Begin(kB, PullOf(1, At(1, 2))) == Add::kStore);
  CHECK(owner.acknowledged(kA).through == PieceNumber(0));
}

TEST_CASE("an owner is sealed once when all ranks have finished and all pieces are added",
          "[train]") {
  AccumulateState owner = Opened();
  CHECK(owner.OnFinish(kB, FinishOf(0, 3)).ok());
  CHECK(owner.OnFinish(kA, FinishOf(1, 2)).ok());
  CHECK(owner.WaitsFor() == std::vector<TrainerRank>{kA});
  CHECK_FALSE(owner.TakeSealed().has_value());
  AddNext(owner, kA, 1);
  CHECK(owner.WaitsFor().empty());
  CHECK(owner.TakeSealed() == 5);
  CHECK_FALSE(owner.TakeSealed().has_value());
  owner.Open(At(2, 1));
  CHECK_FALSE(owner.sealed());
}

TEST_CASE("an equal Finish is acknowledged again and another one refused", "[train]") {
  AccumulateState owner = Opened();
  CHECK(owner.OnFinish(kA, FinishOf(2, 3)).ok());
  CHECK(owner.OnFinish(kA, FinishOf(2, 3)).ok());
  CHECK(absl::IsInvalidArgument(owner.OnFinish(kA, FinishOf(1, 3))));
  CHECK(absl::IsInvalidArgument(owner.OnFinish(kA, FinishOf(2, 4))));
  CHECK(absl::IsInvalidArgument(owner.OnOffer(kA, OfferOf(3)).status()));  // after the last
}

TEST_CASE("what no correct rank sends is refused and changes nothing", "[train]") {
  AccumulateState owner = Opened();
  CHECK(owner.OnOffer(kA, OfferOf(1)).ok());
  CHECK(absl::IsInvalidArgument(owner.OnOffer(TrainerRank(2), OfferOf(1)).status()));
  CHECK(absl::IsInvalidArgument(owner.OnOffer(kA, OfferOf(0)).status()));
  CHECK(absl::IsInvalidArgument(owner.OnOffer(kA, OfferOf(2, 2)).status()));
  CHECK(absl::IsInvalidArgument(owner.OnOffer(kA, OfferOf(4)).status()));  // three slots
  CHECK(absl::IsInvalidArgument(owner.OnFinish(kA, FinishOf(0))));         // one was offered
  for (const double weight :
       {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    CHECK(absl::IsInvalidArgument(owner.OnFinish(kB, FinishOf(0, weight))));
  }
  CHECK(owner.queued(kA) == 1);
  CHECK(owner.WaitsFor() == std::vector{kA, kB});
}

TEST_CASE("a pull that failed is tried again", "[train]") {
  AccumulateState owner = Opened();
  CHECK(owner.OnOffer(kA, OfferOf(1)).ok());
  CHECK(owner.NextPull(kA) == OfferOf(1));
  owner.OnPullFailed(kA, PullOf(1, At(1, 2)));  // not this one
  CHECK_FALSE(owner.NextPull(kA).has_value());
  owner.OnPullFailed(kA, PullOf(1));
  CHECK(owner.NextPull(kA) == OfferOf(1));
}

TEST_CASE("after a new connection what was not added is asked for and an add goes on", "[train]") {
  AccumulateState owner = Opened();
  CHECK(owner.OnOffer(kA, OfferOf(1)).ok());
  CHECK(owner.OnOffer(kA, OfferOf(2, 1)).ok());
  CHECK(owner.Begin(kA, PullOf(1)) == Add::kStore);
  owner.OnConnect(kA);
  CHECK(owner.wanted(kA).from == PieceNumber(1));
  CHECK(owner.Begin(kA, PullOf(2)) == Add::kStale);
  CHECK(owner.OnOffer(kA, OfferOf(1)).value() == Answer::kQueued);
  CHECK(owner.Added(kA, PullOf(1)));
  CHECK(owner.OnOffer(kA, OfferOf(2, 1)).value() == Answer::kQueued);
  CHECK(owner.NextPull(kA) == OfferOf(2, 1));
}

TEST_CASE("a combiner counts the ranks that it has asked and no others", "[train]") {
  AccumulateState combiner(3, 2, 3, AccumulateState::Counts::kAsked);
  combiner.Open(At(1, 1));
  CHECK_FALSE(combiner.sealed());  // it has asked nobody
  CHECK(absl::IsFailedPrecondition(combiner.OnOffer(kA, OfferOf(1)).status()));
  CHECK(absl::IsFailedPrecondition(combiner.OnFinish(kA, FinishOf(0))));
  combiner.Ask(kA);
  AddNext(combiner, kA, 1);
  CHECK(combiner.OnFinish(kA, FinishOf(1, 0)).ok());
  combiner.Ask(kB);
  CHECK(combiner.WaitsFor() == std::vector{kB});
  CHECK_FALSE(combiner.TakeSealed().has_value());
  CHECK(combiner.OnFinish(kB, FinishOf(0, 0)).ok());
  CHECK(combiner.TakeSealed() == 0.0);
  CHECK_FALSE(combiner.TakeSealed().has_value());
  combiner.Open(At(1, 2));
  CHECK(absl::IsFailedPrecondition(combiner.OnOffer(kA, OfferOf(1, 0, At(1, 2))).status()));
}

TEST_CASE("a combiner asks until a rank has finished, and at once over a new connection",
          "[train]") {
  AccumulateState combiner(3, 2, 3, AccumulateState::Counts::kAsked);
  combiner.Open(At(1, 1));
  const TimePoint now = TimePoint(std::chrono::hours(1));
  CHECK(combiner.AsksDue(now).empty());
  combiner.Ask(kA);
  combiner.Ask(kB);
  CHECK(combiner.AsksDue(now) == std::vector{kA, kB});
  combiner.Ask(kA);
  CHECK(combiner.AsksDue(now).empty());
  combiner.OnConnect(kB);
  CHECK(combiner.AsksDue(now) == std::vector{kB});
  CHECK(combiner.OnFinish(kA, FinishOf(0, 0)).ok());
  CHECK(combiner.AsksDue(now + limits::kTrainRepeat) == std::vector{kB});
}

}  // namespace dws
