// A stream with a wrong incarnation, the trainer that it shuts out, and the operator who makes the
// receiver forget it.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include "tests/receiver_daemon/worker_fixture.h"

namespace dws {
namespace {

std::optional<Status> Outcome(OperatorTask& task) { return task.Await(Duration::zero()); }

OperatorTaskPtr Forget(Daemon& daemon, const StreamId& stream) {
  auto task = daemon.requests.Forget(stream);
  REQUIRE(task.ok());
  return *task;
}

// An engine that runs with version 1 of a stream.
struct Running {
  explicit Running(uint64_t incarnation) : trainer(OneRank(), incarnation) {
    daemon.Connect();
    client.Attach(trainer.layouts());
    daemon.Offer({trainer.Publish()});
    REQUIRE(daemon.worker.Step().ok());
    REQUIRE(client.running == 1);
  }

  FakeTrainer trainer;
  MemoryReceiverLedger ledger;
  Daemon daemon{trainer, ledger};
  Client client{*trainer.layouts(), daemon.registry};
};

}  // namespace

TEST_CASE("only the stream that is named is forgotten", "[forget]") {
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  Daemon daemon(trainer, ledger);
  OperatorTaskPtr task = Forget(daemon, trainer.stream());
  REQUIRE(daemon.worker.Step().ok());
  CHECK_THAT(std::string(Message(*Outcome(*task))), Catch::Contains("none to forget"));

  daemon.Connect();
  REQUIRE(daemon.worker.Step().ok());
  task = Forget(daemon, {.incarnation = 9, .id_hi = 1, .id_lo = 1});
  REQUIRE(daemon.worker.Step().ok());
  CHECK_THAT(std::string(Message(*Outcome(*task))), Catch::Contains(ToString(trainer.stream())));
  CHECK(ledger.state().stream() == trainer.stream());
}

TEST_CASE("a trainer that was shut out is followed once the wrong stream is forgotten",
          "[forget]") {
  Running it(/*incarnation=*/50'000'000);
  Daemon& daemon = it.daemon;
  FakeTrainer wanted(OneRank(), /*incarnation=*/2);
  const SenderWelcome welcome{.stream = wanted.stream(),
                              .trainer_rank = TrainerRank(0),
                              .world_size = 1,
                              .rank_epoch = RankEpoch(1),
                              .layout = wanted.ranks()[0]};
  const Status refused = daemon.subscription.OnWelcome(SenderIndex(0), welcome);
  CHECK_THAT(std::string(Message(refused)), Catch::Contains("dwsctl forget-stream"));

  const OperatorTaskPtr task = Forget(daemon, it.trainer.stream());
  REQUIRE(daemon.worker.Step().ok());
  REQUIRE(Outcome(*task).has_value());
  CHECK(Outcome(*task)->ok());
  CHECK_FALSE(it.ledger.state().stream().has_value());
  // Nothing stale runs: no sender vouches for the engine's weights.
  CHECK(it.client.running == 0);
  CHECK_FALSE(daemon.worker.status().ready);
  CHECK_FALSE(daemon.subscription.live().has_value());
  REQUIRE(daemon.worker.Step().ok());
  CHECK(it.client.running == 0);
  CHECK_FALSE(daemon.worker.status().ready);

  REQUIRE(daemon.subscription.OnWelcome(SenderIndex(0), welcome).ok());
  wanted.Publish();
  REQUIRE(daemon.worker.Step().ok());
  CHECK(it.client.running == 0);
  CHECK(it.ledger.state().stream() == wanted.stream());
}

TEST_CASE("after a stream is forgotten the engine resumes only with weights that a sender proves",
          "[forget]") {
  Running it(/*incarnation=*/7);
  Daemon& daemon = it.daemon;
  // A stray write while no scrub runs.
  it.client.created.region.mutable_bytes()[5] ^= std::byte{4};
  Forget(daemon, it.trainer.stream());
  REQUIRE(daemon.worker.Step().ok());
  CHECK(it.client.running == 0);
  it.trainer.ClearLog();
  daemon.Connect();  // the same stream connects again
  daemon.Offer({1});
  REQUIRE(daemon.worker.Step().ok());
  CHECK(it.client.running == 1);
  CHECK(it.client.Holds(it.trainer, 1));
  CHECK(daemon.worker.status().ready);
  const std::vector<std::string> log = it.trainer.Log();
  CHECK(std::find(log.begin(), log.end(), "describe 1") != log.end());
  CHECK(std::find(log.begin(), log.end(), "full 1 {0}") != log.end());
}

TEST_CASE("a forget that cannot be recorded keeps the stream and the engine is proved again",
          "[forget]") {
  Running it(/*incarnation=*/7);
  it.ledger.FailNext(ResourceExhaustedError("disk full"));
  const OperatorTaskPtr task = Forget(it.daemon, it.trainer.stream());
  REQUIRE(it.daemon.worker.Step().ok());
  CHECK(absl::IsResourceExhausted(*Outcome(*task)));
  CHECK(it.ledger.state().stream() == it.trainer.stream());
  REQUIRE(it.daemon.worker.Step().ok());
  CHECK(it.client.running == 1);
}

TEST_CASE("an engine that does not pause for a forget loses its registration", "[forget]") {
  Running it(/*incarnation=*/7);
  it.client.hangs = true;
  const OperatorTaskPtr task = Forget(it.daemon, it.trainer.stream());
  std::atomic<bool> over{false};
  std::thread time([&] {
    while (!over.load()) {
      it.daemon.clock.Jump(std::chrono::milliseconds(100));
      std::this_thread::yield();
    }
  });
  const Status step = it.daemon.worker.Step();
  over.store(true);
  time.join();
  REQUIRE(step.ok());
  CHECK(Outcome(*task)->ok());
  CHECK(it.client.running == 1);  // it never reported a pause
  CHECK(it.client.ended);
  CHECK_FALSE(it.daemon.worker.status().ready);
}

}  // namespace dws
