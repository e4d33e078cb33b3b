#include "common/train_state/outbox_state.h"

#include <catch2/catch.hpp>
#include <limits>
#include <vector>

#include "tests/common/train_state/train_samples.h"

namespace dws {
namespace {

const TrainerRank kA(0);
const TrainerRank kB(1);
const AttemptId kAttempt = At(1, 1);

TimePoint Later(Duration after) { return TimePoint(std::chrono::hours(1)) + after; }

// To two owners, with two slots.
OutboxState Opened() {
  OutboxState outbox(2, 2);
  outbox.Open(kAttempt);
  return outbox;
}

PieceAck AckOf(uint64_t through, AttemptId attempt = kAttempt) {
  return {.attempt = attempt, .through = PieceNumber(through)};
}

std::vector<uint64_t> Offered(OutboxState& outbox, const PieceRoute& route, Duration at = {}) {
  std::vector<uint64_t> numbers;
  for (const PieceOffer& offer : outbox.Due(route, Later(at)).offers) {
    numbers.push_back(offer.number.value());
  }
  return numbers;
}

using Numbers = std::vector<uint64_t>;

}  // namespace

TEST_CASE("a push is offered to every owner once", "[train]") {
  OutboxState outbox = Opened();
  CHECK(outbox.FreeSlot() == OutboxSlot(0));
  CHECK(outbox.Push(kAttempt, UnitIndex(7)).ok());
  const OutboxState::Messages due = outbox.Due(DirectTo(kA), Later({}));
  REQUIRE(due.offers.size() == 1);
  CHECK(due.offers[0] == OfferOf(1, 7));
  CHECK_FALSE(due.finish.has_value());
  CHECK(Offered(outbox, DirectTo(kA)).empty());
  CHECK(Offered(outbox, DirectTo(kB)) == Numbers{1});
}

TEST_CASE("a slot is free when every owner has acknowledged its piece", "[train]") {
  OutboxState outbox = Opened();
  CHECK(outbox.Push(kAttempt, UnitIndex(0)).ok());
  CHECK(outbox.FreeSlot() == OutboxSlot(1));
  CHECK(outbox.Push(kAttempt, UnitIndex(0)).ok());
  CHECK_FALSE(outbox.FreeSlot().has_value());
  CHECK(absl::IsResourceExhausted(outbox.Push(kAttempt, UnitIndex(0))));
  CHECK(outbox.OnAck(DirectTo(kA), AckOf(2)).ok());
  CHECK_FALSE(outbox.FreeSlot().has_value());
  CHECK(outbox.WaitsFor() == std::vector{kA, kB});  // not finished
  CHECK(outbox.OnAck(DirectTo(kB), AckOf(1)).ok());
  CHECK(outbox.FreeSlot() == OutboxSlot(0));
  CHECK(outbox.in_use() == 1);
}

TEST_CASE("what is not acknowledged is offered again after a time and over a new connection",
          "[train]") {
  OutboxState outbox = Opened();
  CHECK(outbox.Push(kAttempt, UnitIndex(0)).ok());
  CHECK(outbox.Push(kAttempt, UnitIndex(1)).ok());
  CHECK(Offered(outbox, DirectTo(kA)) == Numbers{1, 2});
  CHECK(outbox.OnAck(DirectTo(kA), AckOf(1)).ok());
  CHECK(Offered(outbox, DirectTo(kA), limits::kTrainRepeat / 2).empty());
  CHECK(Offered(outbox, DirectTo(kA), limits::kTrainRepeat) == Numbers{2});
  CHECK(Offered(outbox, DirectTo(kA), limits::kTrainRepeat).empty());
  outbox.OnConnect(kA);
  CHECK(Offered(outbox, DirectTo(kA), limits::kTrainRepeat) == Numbers{2});
  CHECK(outbox.OnAck(DirectTo(kA), AckOf(2)).ok());
  CHECK(Offered(outbox, DirectTo(kA), 10 * limits::kTrainRepeat).empty());
}

TEST_CASE("an owner gets again what it wants and acknowledges nothing by that", "[train]") {
  OutboxState outbox = Opened();
  CHECK(outbox.Push(kAttempt, UnitIndex(0)).ok());
  CHECK(outbox.Push(kAttempt, UnitIndex(0)).ok());
  CHECK(Offered(outbox, DirectTo(kA)) == Numbers{1, 2});
  CHECK(outbox.OnWanted(DirectTo(kA), {.attempt = kAttempt, .from = PieceNumber(2)}).ok());
  CHECK(Offered(outbox, DirectTo(kA)) == Numbers{2});
  CHECK(outbox.Find(DirectTo(kA), PullOf(1)).has_value());
}

TEST_CASE("a Finish follows the last piece until it is acknowledged", "[train]") {
  OutboxState outbox = Opened();
  CHECK(outbox.Push(kAttempt, UnitIndex(0)).ok());
  CHECK(outbox.Finish(kAttempt, 3).ok());
  const OutboxState::Messages due = outbox.Due(DirectTo(kA), Later({}));
  CHECK(due.offers.size() == 1);
  CHECK(due.finish == PushFinish{.attempt = kAttempt, .count = 1, .weight = 3});
  CHECK_FALSE(outbox.Due(DirectTo(kA), Later({})).finish.has_value());
  CHECK(outbox.OnAck(DirectTo(kA), AckOf(1)).ok());
  CHECK(outbox.Due(DirectTo(kA), Later(limits::kTrainRepeat)).finish.has_value());
  CHECK(outbox.OnFinishAck(DirectTo(kA), {.attempt = kAttempt}).ok());
  CHECK(outbox.WaitsFor() == std::vector{kB});
  CHECK(outbox.OnAck(DirectTo(kB), AckOf(1)).ok());
  CHECK_FALSE(outbox.WaitsFor().empty());
  CHECK(outbox.OnFinishAck(DirectTo(kB), {.attempt = kAttempt}).ok());
  CHECK(outbox.WaitsFor().empty());
}

TEST_CASE("a rank without a microbatch only finishes", "[train]") {
  OutboxState outbox = Opened();
  CHECK(outbox.Finish(kAttempt, 0).ok());
  CHECK(outbox.Due(DirectTo(kB), Later({})).finish == PushFinish{.attempt = kAttempt});
}

TEST_CASE("a pull is served until its piece is acknowledged and in its attempt only", "[train]") {
  OutboxState outbox = Opened();
  CHECK(outbox.Push(kAttempt, UnitIndex(4)).ok());
  REQUIRE(outbox.Find(DirectTo(kA), PullOf(1)).has_value());
  CHECK(outbox.Find(DirectTo(kA), PullOf(1))->unit == UnitIndex(4));
  CHECK(outbox.Find(DirectTo(kA), PullOf(1))->push == 1);
  CHECK_FALSE(outbox.Find(DirectTo(kA), PullOf(2)).has_value());
  CHECK_FALSE(outbox.Find(DirectTo(kA), PullOf(1, At(1, 2))).has_value());
  CHECK_FALSE(outbox.Find(DirectTo(TrainerRank(2)), PullOf(1)).has_value());
  CHECK(outbox.OnAck(DirectTo(kA), AckOf(1)).ok());
  CHECK_FALSE(outbox.Find(DirectTo(kA), PullOf(1)).has_value());
  CHECK(outbox.Find(DirectTo(kB), PullOf(1)).has_value());
}

TEST_CASE("a new attempt frees all slots and ignores answers about the last", "[train]") {
  OutboxState outbox = Opened();
  CHECK(outbox.Push(kAttempt, UnitIndex(0)).ok());
  CHECK(outbox.Finish(kAttempt, 1).ok());
  outbox.Open(At(1, 2));
  CHECK(outbox.in_use() == 0);
  CHECK(outbox.OnAck(DirectTo(kA), AckOf(1)).ok());
  CHECK(outbox.OnFinishAck(DirectTo(kA), {.attempt = kAttempt}).ok());
  CHECK(outbox.OnWanted(DirectTo(kA), {.attempt = kAttempt, .from = PieceNumber(1)}).ok());
  CHECK(absl::IsAborted(outbox.Push(kAttempt, UnitIndex(0))));
  CHECK(absl::IsAborted(outbox.Finish(kAttempt, 1)));
  CHECK(outbox.Push(At(1, 2), UnitIndex(0)).ok());
  CHECK(Offered(outbox, DirectTo(kA)) == Numbers{1});
}

TEST_CASE("what no rank or owner may say is refused by the outbox", "[train]") {
  OutboxState outbox = Opened();
  CHECK(outbox.Push(kAttempt, UnitIndex(0)).ok());
  CHECK(absl::IsInvalidArgument(outbox.OnAck(DirectTo(kA), AckOf(2)).status()));
  CHECK(outbox.OnAck(DirectTo(TrainerRank(2)), AckOf(1)).value().empty());  // no such route
  CHECK(absl::IsInvalidArgument(
      outbox.OnWanted(DirectTo(kA), {.attempt = kAttempt, .from = PieceNumber(3)})));
  CHECK(absl::IsInvalidArgument(outbox.OnFinishAck(DirectTo(kA), {.attempt = kAttempt})));
  for (const double weight : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    CHECK(absl::IsInvalidArgument(outbox.Finish(kAttempt, weight)));
  }
  CHECK(outbox.Finish(kAttempt, 1).ok());
  CHECK(absl::IsFailedPrecondition(outbox.Push(kAttempt, UnitIndex(0))));
}

namespace {

const TrainerRank kC(2);
// Rank 0's pieces for owner 2 go to the combiner 1.
const PieceRoute kCombined{.to = kB, .owner = kC};

CombineRequest RequestOf(std::vector<bool> units, AttemptId attempt = kAttempt) {
  return {.attempt = attempt, .owner = kC, .units = std::move(units)};
}

// In a job of three ranks, with two slots.
OutboxState OfThree() {
  OutboxState outbox(3, 2);
  outbox.Open(kAttempt);
  return outbox;
}

}  // namespace

TEST_CASE("a piece goes to the combiner that has asked for its unit, and on no other route",
          "[train]") {
  OutboxState outbox = OfThree();
  CHECK(outbox.Push(kAttempt, UnitIndex(1)).ok());  // before it was asked for
  CHECK(outbox.OnCombineRequest(kB, RequestOf({false, true})).ok());
  CHECK(outbox.OnCombineRequest(kB, RequestOf({false, true})).ok());  // once more
  CHECK(outbox.OnAck(DirectTo(kA), AckOf(1)).ok());
  CHECK(outbox.OnAck(DirectTo(kB), AckOf(1)).ok());
  CHECK(outbox.OnAck(DirectTo(kC), AckOf(1)).value().size() == 1);
  CHECK(outbox.Push(kAttempt, UnitIndex(1)).ok());
  CHECK(outbox.Push(kAttempt, UnitIndex(0)).ok());  // of a unit that was not asked for
  REQUIRE(Offered(outbox, kCombined) == Numbers{1});
  CHECK(outbox.Find(kCombined, PullOf(1))->push == 2);
  REQUIRE(Offered(outbox, DirectTo(kC)) == Numbers{2});
  CHECK(outbox.Find(DirectTo(kC), PullOf(2))->push == 3);
  CHECK(Offered(outbox, DirectTo(kB)) == Numbers{2, 3});
  CHECK(outbox.Push(kAttempt, UnitIndex(2)).code() == absl::StatusCode::kResourceExhausted);
}

TEST_CASE("slots are free in any order, since routes are acknowledged by themselves", "[train]") {
  OutboxState outbox = OfThree();
  CHECK(outbox.OnCombineRequest(kB, RequestOf({false, true})).ok());
  CHECK(outbox.Push(kAttempt, UnitIndex(0)).ok());
  CHECK(outbox.Push(kAttempt, UnitIndex(1)).ok());
  for (const PieceRoute& route : {DirectTo(kA), DirectTo(kB)}) {
    CHECK(outbox.OnAck(route, AckOf(2)).ok());
  }
  const auto acknowledged = outbox.OnAck(kCombined, AckOf(1)).value();
  REQUIRE(acknowledged.size() == 1);
  CHECK(acknowledged[0].push == 2);
  CHECK(outbox.in_use() == 1);
  CHECK(outbox.FreeSlot() == OutboxSlot(1));  // the first one waits for owner 2
  CHECK(outbox.WaitsFor() == std::vector{kA, kB, kC});
}

TEST_CASE("a combiner gets a Finish without a weight, whatever it has got", "[train]") {
  OutboxState outbox = OfThree();
  CHECK(outbox.OnCombineRequest(kB, RequestOf({true})).ok());
  CHECK(outbox.Push(kAttempt, UnitIndex(0)).ok());
  CHECK(outbox.OnCombineRequest(kA, RequestOf({true})).ok());  // another one has asked first
  CHECK(outbox.Push(kAttempt, UnitIndex(0)).ok());
  CHECK(outbox.Finish(kAttempt, 7).ok());
  CHECK(outbox.Due(kCombined, Later({})).finish ==
        PushFinish{.attempt = kAttempt, .count = 2, .weight = 0});
  CHECK(outbox.Due({.to = kA, .owner = kC}, Later({})).finish == PushFinish{.attempt = kAttempt});
  CHECK(outbox.Due(DirectTo(kC), Later({})).finish ==
        PushFinish{.attempt = kAttempt, .count = 0, .weight = 7});
  // A combiner that asks when the rank has finished gets a Finish, too.
  CHECK(outbox.OnCombineRequest(kA, {.attempt = kAttempt, .owner = kB, .units = {true}}).ok());
  CHECK(outbox.Due({.to = kA, .owner = kB}, Later({})).finish == PushFinish{.attempt = kAttempt});
}

TEST_CASE("a request counts in its attempt only, also if it comes early", "[train]") {
  OutboxState outbox = OfThree();
  CHECK(outbox.OnCombineRequest(kB, RequestOf({true}, At(1, 2))).ok());
  CHECK(outbox.Push(kAttempt, UnitIndex(0)).ok());
  CHECK(Offered(outbox, DirectTo(kC)) == Numbers{1});
  outbox.Open(At(1, 2));
  CHECK(outbox.OnCombineRequest(kA, {.attempt = kAttempt, .owner = kB, .units = {true}}).ok());
  CHECK(outbox.Push(At(1, 2), UnitIndex(0)).ok());
  CHECK(Offered(outbox, kCombined) == Numbers{1});
  CHECK(Offered(outbox, DirectTo(kB)) == Numbers{1});  // what was asked for in the last one is over
  outbox.Open(At(1, 3));
  CHECK(outbox.Push(At(1, 3), UnitIndex(0)).ok());
  CHECK(Offered(outbox, DirectTo(kC)) == Numbers{1});
  CHECK(Offered(outbox, kCombined).empty());
  CHECK(absl::IsInvalidArgument(outbox.OnCombineRequest(kC, RequestOf({true}, At(1, 3)))));
  CHECK(absl::IsInvalidArgument(
      outbox.OnCombineRequest(TrainerRank(3), RequestOf({true}, At(1, 3)))));
}

TEST_CASE("a combiner's Finish to the owner follows its sums, as many at a time as slots",
          "[train]") {
  OutboxState outbox = OfThree();
  CHECK(outbox.Push(kAttempt, UnitIndex(3)).ok());
  CHECK(outbox.Hold(kC));
  CHECK(outbox.Finish(kAttempt, 7).ok());
  CHECK_FALSE(outbox.Hold(kB));  // too late
  CHECK(outbox.Due(DirectTo(kB), Later({})).finish.has_value());
  CHECK(outbox.OnAck(DirectTo(kC), AckOf(1)).ok());
  CHECK_FALSE(outbox.Due(DirectTo(kC), Later(limits::kTrainRepeat)).finish.has_value());
  CHECK(absl::IsInvalidArgument(outbox.OnFinishAck(DirectTo(kC), {.attempt = kAttempt})));
  CHECK(outbox.WaitsFor() == std::vector{kA, kB, kC});
  for (const TrainerRank rank : {kA, kB}) CHECK(outbox.OnAck(DirectTo(rank), AckOf(1)).ok());
  outbox.Forward(kC, {UnitIndex(0), UnitIndex(3), UnitIndex(5)});
  const OutboxState::Messages due = outbox.Due(DirectTo(kC), Later({}));
  REQUIRE(due.offers.size() == 2);
  CHECK(due.offers[0].unit == UnitIndex(0));
  CHECK_FALSE(due.finish.has_value());
  CHECK(outbox.Find(DirectTo(kC), PullOf(3))->push == 0);
  CHECK(outbox.OnAck(DirectTo(kC), AckOf(3)).ok());
  CHECK(Offered(outbox, DirectTo(kC)) == Numbers{4});
  CHECK(outbox.OnAck(DirectTo(kC), AckOf(4)).ok());
  CHECK(outbox.in_use() == 0);  // sums take no slot
  CHECK(outbox.Due(DirectTo(kC), Later(2 * limits::kTrainRepeat)).finish ==
        PushFinish{.attempt = kAttempt, .count = 4, .weight = 7});
}

}  // namespace dws
