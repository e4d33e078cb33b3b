#include "common/ledger/ledger_state.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>

#include "common/model/identity_limits.h"
#include "common/model/limits.h"

namespace dws {
namespace {

constexpr StreamId kOld = {.incarnation = 1, .id_hi = 1, .id_lo = 1};
constexpr StreamId kNew = {.incarnation = 2, .id_hi = 1, .id_lo = 1};
constexpr StreamId kTwin = {.incarnation = 2, .id_hi = 1, .id_lo = 2};

SenderRecord Open(const StreamId& stream, uint64_t epoch) {
  return StreamOpened{.stream = stream, .rank_epoch = RankEpoch(epoch)};
}
SenderRecord Publish(const StreamId& stream, uint64_t version, uint64_t base = 0) {
  return VersionPublished{.stream = stream,
                          .version = WeightVersion(version),
                          .base = base == 0 ? std::nullopt : std::optional<WeightVersion>(base),
                          .state_token = {.lane0 = version, .lane1 = 1}};
}
ReceiverRecord Accept(const StreamId& stream) { return StreamAccepted{.stream = stream}; }
ReceiverRecord Intent(const StreamId& stream, uint64_t target) {
  return CommitIntent{.stream = stream,
                      .base = std::nullopt,
                      .target = WeightVersion(target),
                      .generation = Generation(1)};
}
ReceiverRecord Commit(const StreamId& stream, uint64_t version) {
  return VersionCommitted{.stream = stream, .version = WeightVersion(version)};
}
ReceiverRecord Decide(const StreamId& stream, uint64_t version) {
  return GroupDecided{.stream = stream, .version = WeightVersion(version)};
}
ReceiverRecord Settle(const StreamId& stream, uint64_t version) {
  return GroupSettled{.stream = stream, .version = WeightVersion(version)};
}
StreamForgotten Forget(const StreamId& stream) { return {.stream = stream}; }
ReceiverRecord Abandon(const StreamId& stream, uint64_t target) {
  return CommitAbandoned{.stream = stream, .target = WeightVersion(target)};
}

template <typename State>
void CheckRefused(State& state, const typename State::Record& record) {
  const State before = state;
  CHECK(absl::IsFailedPrecondition(state.Apply(record)));
  CHECK(state == before);
}

template <typename State>
State Replay(const std::vector<typename State::Record>& records) {
  State state;
  for (const auto& record : records) REQUIRE(state.Apply(record).ok());
  return state;
}

TEST_CASE("an old trainer and a second one of the same incarnation are refused", "[ledger]") {
  SenderLedgerState sender;
  REQUIRE(sender.Apply(Open(kNew, 1)).ok());
  CheckRefused(sender, Open(kOld, 5));
  CheckRefused(sender, Open(kTwin, 5));

  ReceiverLedgerState receiver;
  REQUIRE(receiver.Apply(Accept(kNew)).ok());
  REQUIRE(receiver.Apply(Accept(kNew)).ok());
  CheckRefused(receiver, Accept(kOld));
  CheckRefused(receiver, Accept(kTwin));
  CHECK(receiver.stream() == kNew);
}

TEST_CASE("a sender's versions only increase and continue after a lost snapshot", "[ledger]") {
  SenderLedgerState state;
  CheckRefused(state, Publish(kOld, 1));
  REQUIRE(state.Apply(Open(kOld, 1)).ok());
  REQUIRE(state.Apply(Publish(kOld, 1)).ok());
  REQUIRE(state.Apply(Publish(kOld, 3, 1)).ok());
  CheckRefused(state, Publish(kOld, 3));
  CheckRefused(state, Publish(kOld, 2));
  CheckRefused(state, Publish(kOld, 5, 5));
  CheckRefused(state, Publish(kNew, 4));
  CHECK(state.published().size() == 2);

  CheckRefused(state, Open(kOld, 1));
  REQUIRE(state.Apply(Open(kOld, 2)).ok());
  REQUIRE(state.published().size() == 1);  // it may be published once more
  CHECK(state.published().back().version == WeightVersion(3));
  CHECK(Replay<SenderLedgerState>(state.Records()) == state);
  CHECK(state.last_version() == WeightVersion(3));
  CheckRefused(state, Publish(kOld, 3));

  REQUIRE(state.Apply(Open(kNew, 1)).ok());
  CHECK_FALSE(state.last_version().has_value());
  REQUIRE(state.Apply(Publish(kNew, 1)).ok());
}

TEST_CASE("a sender remembers a bounded number of versions", "[ledger]") {
  SenderLedgerState state;
  REQUIRE(state.Apply(Open(kOld, 1)).ok());
  const uint64_t count = limits::kRetainedVersionsMax + 10;
  for (uint64_t v = 1; v <= count; ++v) REQUIRE(state.Apply(Publish(kOld, v)).ok());
  CHECK(state.published().size() == limits::kRetainedVersionsMax);
  CHECK(state.published().back().version == WeightVersion(count));
  CHECK(Replay<SenderLedgerState>(state.Records()) == state);
}

TEST_CASE("a commit needs its intent and versions of a stream do not decrease", "[ledger]") {
  ReceiverLedgerState state;
  CheckRefused(state, Intent(kOld, 1));
  REQUIRE(state.Apply(Accept(kOld)).ok());
  CheckRefused(state, Commit(kOld, 1));
  CheckRefused(state, Intent(kNew, 1));
  REQUIRE(state.Apply(Intent(kOld, 4)).ok());
  CheckRefused(state, Commit(kOld, 5));
  CHECK_FALSE(state.committed().has_value());
  REQUIRE(state.Apply(Commit(kOld, 4)).ok());
  CHECK_FALSE(state.open_intent().has_value());
  CHECK(state.committed()->version == WeightVersion(4));

  CheckRefused(state, Intent(kOld, 3));
  REQUIRE(state.Apply(Intent(kOld, 4)).ok());  // a repair of the same version
  REQUIRE(state.Apply(Commit(kOld, 4)).ok());
  REQUIRE(state.Apply(Accept(kNew)).ok());
  REQUIRE(state.Apply(Intent(kNew, 1)).ok());  // another stream counts from 1 again
}

TEST_CASE("an intent may be abandoned unless an earlier one may have torn the memory", "[ledger]") {
  ReceiverLedgerState state;
  REQUIRE(state.Apply(Accept(kOld)).ok());
  CheckRefused(state, Abandon(kOld, 1));
  REQUIRE(state.Apply(Intent(kOld, 1)).ok());
  CheckRefused(state, Abandon(kOld, 2));
  REQUIRE(state.Apply(Abandon(kOld, 1)).ok());
  CHECK_FALSE(state.open_intent().has_value());

  REQUIRE(state.Apply(Intent(kOld, 1)).ok());
  REQUIRE(state.Apply(Intent(kOld, 2)).ok());
  CheckRefused(state, Abandon(kOld, 2));
  REQUIRE(state.Apply(Commit(kOld, 2)).ok());
  REQUIRE(state.Apply(Intent(kOld, 3)).ok());
  REQUIRE(state.Apply(Abandon(kOld, 3)).ok());
}

TEST_CASE("an open intent is replaced only by one of the same or a later version", "[ledger]") {
  ReceiverLedgerState state;
  REQUIRE(state.Apply(Accept(kOld)).ok());
  REQUIRE(state.Apply(Intent(kOld, 4)).ok());
  CheckRefused(state, Intent(kOld, 3));
  REQUIRE(state.Apply(Intent(kOld, 4)).ok());
  REQUIRE(state.Apply(Intent(kOld, 5)).ok());
  REQUIRE(state.Apply(Accept(kNew)).ok());
  REQUIRE(state.Apply(Intent(kNew, 1)).ok());
}

TEST_CASE("a group's decision stays open until it is settled and replaces an earlier one",
          "[ledger]") {
  ReceiverLedgerState state;
  CheckRefused(state, Decide(kOld, 4));
  REQUIRE(state.Apply(Accept(kOld)).ok());
  CheckRefused(state, Settle(kOld, 4));
  REQUIRE(state.Apply(Decide(kOld, 4)).ok());
  REQUIRE(state.Apply(Decide(kOld, 5)).ok());
  CHECK(state.decided()->version == WeightVersion(5));
  REQUIRE(state.Apply(Intent(kOld, 5)).ok());
  REQUIRE(state.Apply(Commit(kOld, 5)).ok());
  CHECK(state.decided().has_value());
  REQUIRE(state.Apply(Settle(kOld, 5)).ok());
  CHECK_FALSE(state.decided().has_value());
  CheckRefused(state, Decide(kOld, 4));
}

TEST_CASE("a sender that forgot its stream accepts a lower incarnation", "[ledger]") {
  SenderLedgerState state;
  CheckRefused(state, SenderRecord(Forget(kNew)));
  REQUIRE(state.Apply(Open(kNew, 4)).ok());
  REQUIRE(state.Apply(Publish(kNew, 7)).ok());
  CheckRefused(state, Open(kOld, 1));
  CheckRefused(state, SenderRecord(Forget(kTwin)));
  REQUIRE(state.Apply(Forget(kNew)).ok());
  CHECK_FALSE(state.stream().has_value());
  CHECK_FALSE(state.last_version().has_value());
  CHECK_FALSE(state.fence().has_value());
  REQUIRE(state.Apply(Open(kOld, 1)).ok());
  REQUIRE(state.Apply(Publish(kOld, 1)).ok());
  CHECK(state.fence() == Fence{.stream = kOld, .rank_epoch = RankEpoch(1)});
}

TEST_CASE("a forgotten stream is not opened again because its version numbers would repeat",
          "[ledger]") {
  SenderLedgerState state;
  REQUIRE(state.Apply(Open(kNew, 4)).ok());
  REQUIRE(state.Apply(Publish(kNew, 7)).ok());
  REQUIRE(state.Apply(Forget(kNew)).ok());
  CheckRefused(state, Open(kNew, 9));
  CHECK_THAT(std::string(Message(state.CheckOpen(kNew))),
             Catch::Contains("made this daemon forget it") && Catch::Contains("dws.Stream.new()"));
  CHECK(state.NextEpoch(kTwin) == RankEpoch(5));  // epochs only increase
  REQUIRE(state.Apply(Open(kOld, 5)).ok());
  CheckRefused(state, Open(kNew, 9));
  REQUIRE(state.Apply(Forget(kOld)).ok());
  CheckRefused(state, Open(kOld, 9));
  CHECK(Replay<SenderLedgerState>(state.Records()) == state);
  REQUIRE(state.Apply(Open(kTwin, 6)).ok());
  CHECK(Replay<SenderLedgerState>(state.Records()) == state);
  for (uint64_t i = 0; i < 2 * limits::kForgottenStreamsMax; ++i) {
    const StreamId next{.incarnation = 10 + i, .id_hi = 1, .id_lo = 1};
    REQUIRE(state.Apply(Open(next, 9)).ok());
    REQUIRE(state.Apply(Forget(next)).ok());
  }
  CHECK(state.forgotten().size() == limits::kForgottenStreamsMax);
}

TEST_CASE("a sender whose version numbers are lost opens only another stream", "[ledger]") {
  SenderLedgerState state;
  CheckRefused(state, NumbersLost{.stream = kOld});
  REQUIRE(state.Apply(Open(kOld, 4)).ok());
  REQUIRE(state.Apply(Publish(kOld, 7)).ok());
  CheckRefused(state, NumbersLost{.stream = kNew});
  REQUIRE(state.Apply(NumbersLost{.stream = kOld}).ok());
  CHECK(state.published().empty());
  CheckRefused(state, Open(kOld, 9));
  CheckRefused(state, Publish(kOld, 8));
  CHECK_THAT(std::string(Message(state.CheckOpen(kOld))),
             Catch::Contains("ledger was lost") && Catch::Contains("dws.Stream.new()"));
  CHECK(Replay<SenderLedgerState>(state.Records()) == state);
  REQUIRE(state.Apply(Open(kNew, 1)).ok());
  CHECK(state.CheckOpen(kNew).ok());
  REQUIRE(state.Apply(Publish(kNew, 1)).ok());
}

TEST_CASE("a receiver that forgets its only stream has an empty ledger", "[ledger]") {
  ReceiverLedgerState state;
  REQUIRE(state.Apply(Accept(kNew)).ok());
  REQUIRE(state.Apply(Intent(kNew, 3)).ok());
  REQUIRE(state.Apply(Commit(kNew, 3)).ok());
  REQUIRE(state.Apply(Intent(kNew, 4)).ok());
  REQUIRE(state.Apply(Decide(kNew, 4)).ok());
  CheckRefused(state, ReceiverRecord(Forget(kOld)));
  REQUIRE(state.Apply(Forget(kNew)).ok());
  CHECK(state == ReceiverLedgerState());
  REQUIRE(state.Apply(Accept(kOld)).ok());
  REQUIRE(state.Apply(Intent(kOld, 1)).ok());
}

TEST_CASE("a receiver that forgets a newer stream is fenced by the stream before", "[ledger]") {
  constexpr StreamId kPoisoned = {.incarnation = ~uint64_t{0}, .id_hi = 6, .id_lo = 6};
  ReceiverLedgerState state;
  REQUIRE(state.Apply(Accept(kNew)).ok());
  REQUIRE(state.Apply(Intent(kNew, 3)).ok());
  REQUIRE(state.Apply(Commit(kNew, 3)).ok());
  REQUIRE(state.Apply(Accept(kPoisoned)).ok());
  const Status refused = CheckStream(state.stream(), kNew);
  CHECK_THAT(std::string(Message(refused)), Catch::Contains("dwsctl forget-stream"));
  REQUIRE(state.Apply(Forget(kPoisoned)).ok());
  CHECK(state.stream() == kNew);
  CHECK(state.committed()->version == WeightVersion(3));
  CheckRefused(state, Accept(kOld));
  CHECK(Replay<ReceiverLedgerState>(state.Records()) == state);
}

TEST_CASE("forgetting another stream than the recorded one is refused and names it", "[ledger]") {
  const auto message = [](const std::optional<StreamId>& recorded, const StreamId& stream) {
    return std::string(Message(CheckForgotten(recorded, stream)));
  };
  CHECK(CheckForgotten(kNew, kNew).ok());
  CHECK_THAT(message(std::nullopt, kNew), Catch::Contains("there is none to forget"));
  CHECK_THAT(message(kNew, kOld), Catch::Contains(ToString(kNew) + " is recorded here, not"));
  CHECK_THAT(message(kNew, {}), Catch::Contains("forget-stream --stream=" + ToString(kNew)));
}

TEST_CASE("compaction keeps every reachable state exactly", "[ledger]") {
  const uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    SenderLedgerState sender;
    ReceiverLedgerState receiver;
    for (int step = 0; step < 30; ++step) {
      // Records that the rules refuse change nothing.
      const StreamId stream = {.incarnation = 1 + random() % 3, .id_hi = random() % 2, .id_lo = 0};
      const uint64_t number = 1 + random() % 8;
      const SenderRecord sent = random() % 3 == 0 ? Open(stream, number)
                                : random() % 8 == 0
                                    ? SenderRecord(Forget(sender.stream().value_or(stream)))
                                    : Publish(sender.stream().value_or(stream), number);
      static_cast<void>(sender.Apply(sent));
      const StreamId current = receiver.stream().value_or(stream);
      const ReceiverRecord records[] = {Accept(stream),          Intent(current, number),
                                        Commit(current, number), Abandon(current, number),
                                        Decide(current, number), Settle(current, number),
                                        Forget(current)};
      static_cast<void>(receiver.Apply(records[random() % std::size(records)]));
      REQUIRE(Replay<SenderLedgerState>(sender.Records()) == sender);
      REQUIRE(Replay<ReceiverLedgerState>(receiver.Records()) == receiver);
    }
  }
}

}  // namespace
}  // namespace dws
