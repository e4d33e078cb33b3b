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

std::vector<uint64_t> Offered(OutboxState& outbox, TrainerRank owner, Duration at = {}) {
  std::vector<uint64_t> numbers;
  for (const PieceOffer& offer : outbox.Due(owner, Later(at)).offers) {
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
  const OutboxState::Messages due = outbox.Due(kA, Later({}));
  REQUIRE(due.offers.size() == 1);
  CHECK(due.offers[0] == OfferOf(1, 7));
  CHECK_FALSE(due.finish.has_value());
  CHECK(Offered(outbox, kA).empty());
  CHECK(Offered(outbox, kB) == Numbers{1});
}

TEST_CASE("a slot is free when every owner has acknowledged its piece", "[train]") {
  OutboxState outbox = Opened();
  CHECK(outbox.Push(kAttempt, UnitIndex(0)).ok());
  CHECK(outbox.FreeSlot() == OutboxSlot(1));
  CHECK(outbox.Push(kAttempt, UnitIndex(0)).ok());
  CHECK_FALSE(outbox.FreeSlot().has_value());
  CHECK(absl::IsResourceExhausted(outbox.Push(kAttempt, UnitIndex(0))));
  CHECK(outbox.OnAck(kA, AckOf(2)).ok());
  CHECK_FALSE(outbox.FreeSlot().has_value());
  CHECK(outbox.WaitsFor() == std::vector{kA, kB});  // not finished
  CHECK(outbox.OnAck(kB, AckOf(1)).ok());
  CHECK(outbox.FreeSlot() == OutboxSlot(0));
  CHECK(outbox.in_use() == 1);
}

TEST_CASE("what is not acknowledged is offered again after a time and over a new connection",
          "[train]") {
  OutboxState outbox = Opened();
  CHECK(outbox.Push(kAttempt, UnitIndex(0)).ok());
  CHECK(outbox.Push(kAttempt, UnitIndex(1)).ok());
  CHECK(Offered(outbox, kA) == Numbers{1, 2});
  CHECK(outbox.OnAck(kA, AckOf(1)).ok());
  CHECK(Offered(outbox, kA, limits::kTrainRepeat / 2).empty());
  CHECK(Offered(outbox, kA, limits::kTrainRepeat) == Numbers{2});
  CHECK(Offered(outbox, kA, limits::kTrainRepeat).empty());
  outbox.OnConnect(kA);
  CHECK(Offered(outbox, kA, limits::kTrainRepeat) == Numbers{2});
  CHECK(outbox.OnAck(kA, AckOf(2)).ok());
  CHECK(Offered(outbox, kA, 10 * limits::kTrainRepeat).empty());
}

TEST_CASE("an owner gets again what it wants and acknowledges nothing by that", "[train]") {
  OutboxState outbox = Opened();
  CHECK(outbox.Push(kAttempt, UnitIndex(0)).ok());
  CHECK(outbox.Push(kAttempt, UnitIndex(0)).ok());
  CHECK(Offered(outbox, kA) == Numbers{1, 2});
  CHECK(outbox.OnWanted(kA, {.attempt = kAttempt, .from = PieceNumber(2)}).ok());
  CHECK(Offered(outbox, kA) == Numbers{2});
  CHECK(outbox.Find(kA, PullOf(1)).has_value());
}

TEST_CASE("a Finish follows the last piece until it is acknowledged", "[train]") {
  OutboxState outbox = Opened();
  CHECK(outbox.Push(kAttempt, UnitIndex(0)).ok());
  CHECK(outbox.Finish(kAttempt, 3).ok());
  const OutboxState::Messages due = outbox.Due(kA, Later({}));
  CHECK(due.offers.size() == 1);
  CHECK(due.finish == PushFinish{.attempt = kAttempt, .count = 1, .weight = 3});
  CHECK_FALSE(outbox.Due(kA, Later({})).finish.has_value());
  CHECK(outbox.OnAck(kA, AckOf(1)).ok());
  CHECK(outbox.Due(kA, Later(limits::kTrainRepeat)).finish.has_value());
  CHECK(outbox.OnFinishAck(kA, {.attempt = kAttempt}).ok());
  CHECK(outbox.WaitsFor() == std::vector{kB});
  CHECK(outbox.OnAck(kB, AckOf(1)).ok());
  CHECK_FALSE(outbox.delivered());
  CHECK(outbox.OnFinishAck(kB, {.attempt = kAttempt}).ok());
  CHECK(outbox.delivered());
}

TEST_CASE("a rank without a microbatch only finishes", "[train]") {
  OutboxState outbox = Opened();
  CHECK(outbox.Finish(kAttempt, 0).ok());
  CHECK(outbox.Due(kB, Later({})).finish == PushFinish{.attempt = kAttempt});
}

TEST_CASE("a pull is served until its piece is acknowledged and in its attempt only", "[train]") {
  OutboxState outbox = Opened();
  CHECK(outbox.Push(kAttempt, UnitIndex(4)).ok());
  CHECK(outbox.Find(kA, PullOf(1)) == OfferOf(1, 4));
  CHECK_FALSE(outbox.Find(kA, PullOf(2)).has_value());
  CHECK_FALSE(outbox.Find(kA, PullOf(1, At(1, 2))).has_value());
  CHECK_FALSE(outbox.Find(TrainerRank(2), PullOf(1)).has_value());
  CHECK(outbox.OnAck(kA, AckOf(1)).ok());
  CHECK_FALSE(outbox.Find(kA, PullOf(1)).has_value());
  CHECK(outbox.Find(kB, PullOf(1)).has_value());
}

TEST_CASE("a new attempt frees all slots and ignores answers about the last", "[train]") {
  OutboxState outbox = Opened();
  CHECK(outbox.Push(kAttempt, UnitIndex(0)).ok());
  CHECK(outbox.Finish(kAttempt, 1).ok());
  outbox.Open(At(1, 2));
  CHECK(outbox.in_use() == 0);
  CHECK(outbox.OnAck(kA, AckOf(1)).ok());
  CHECK(outbox.OnFinishAck(kA, {.attempt = kAttempt}).ok());
  CHECK(outbox.OnWanted(kA, {.attempt = kAttempt, .from = PieceNumber(1)}).ok());
  CHECK(absl::IsAborted(outbox.Push(kAttempt, UnitIndex(0))));
  CHECK(absl::IsAborted(outbox.Finish(kAttempt, 1)));
  CHECK(outbox.Push(At(1, 2), UnitIndex(0)).ok());
  CHECK(Offered(outbox, kA) == Numbers{1});
}

TEST_CASE("what no rank or owner may say is refused by the outbox", "[train]") {
  OutboxState outbox = Opened();
  CHECK(outbox.Push(kAttempt, UnitIndex(0)).ok());
  CHECK(absl::IsInvalidArgument(outbox.OnAck(kA, AckOf(2))));
  CHECK(absl::IsInvalidArgument(outbox.OnAck(TrainerRank(2), AckOf(1))));
  CHECK(
      absl::IsInvalidArgument(outbox.OnWanted(kA, {.attempt = kAttempt, .from = PieceNumber(3)})));
  CHECK(absl::IsInvalidArgument(outbox.OnFinishAck(kA, {.attempt = kAttempt})));
  for (const double weight : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    CHECK(absl::IsInvalidArgument(outbox.Finish(kAttempt, weight)));
  }
  CHECK(outbox.Finish(kAttempt, 1).ok());
  CHECK(absl::IsFailedPrecondition(outbox.Push(kAttempt, UnitIndex(0))));
}

}  // namespace dws
