// Operators' requests to the worker, round by round, with commits, drift and detached engines in
// between.
#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <string>

#include "tests/fakes/eventually.h"
#include "tests/receiver_daemon/worker_fixture.h"

namespace dws {
namespace {

// An engine that runs with version 1.
struct Running {
  explicit Running(const ScrubOptions& scrub = {}) : daemon(trainer, ledger, {}, scrub) {
    daemon.Connect();
    client.Attach(trainer.layouts());
    daemon.Offer({trainer.Publish()});
    REQUIRE(daemon.worker.Step().ok());
    REQUIRE(client.running == 1);
    trainer.ClearLog();
  }

  // Flips one bit of a tensor's live memory.
  void Flip(uint32_t view, uint64_t byte = 17) {
    client.created.region.mutable_bytes()[client.views[view].offset_bytes + byte] ^= std::byte{4};
  }
  OperatorTaskPtr Verify() {
    auto task = daemon.requests.Verify();
    REQUIRE(task.ok());
    return *task;
  }
  bool Did(const std::string& what) const {
    const std::vector<std::string> log = trainer.Log();
    return std::find(log.begin(), log.end(), what) != log.end();
  }
  void Step() { REQUIRE(daemon.worker.Step().ok()); }

  FakeTrainer trainer{OneRank()};
  MemoryReceiverLedger ledger;
  Daemon daemon;
  Client client{*trainer.layouts(), daemon.registry};
};

std::optional<Status> Outcome(OperatorTask& task) { return task.Await(Duration::zero()); }

}  // namespace

TEST_CASE("memory that holds the published version passes verification slice by slice",
          "[verify]") {
  Running it;
  const OperatorTaskPtr task = it.Verify();
  it.Step();
  CHECK_FALSE(Outcome(*task).has_value());
  CHECK(it.daemon.worker.busy());
  CHECK(task->progress().done_bytes == 140'000);
  it.Step();
  REQUIRE(Outcome(*task).has_value());
  CHECK(Outcome(*task)->ok());
  CHECK_FALSE(it.daemon.worker.busy());
  CHECK(task->progress().done_bytes == task->progress().total_bytes);
  CHECK(task->progress().total_bytes == 140'000 + 4 * 99);
  CHECK(task->progress().mismatches == 0);
  CHECK(it.Did("describe 1"));
  CHECK(it.daemon.worker.status().ready);
}

TEST_CASE("a commit between two batches is not reported as drift", "[verify]") {
  Running it;
  const OperatorTaskPtr task = it.Verify();
  it.Step();
  it.daemon.Offer({1, it.trainer.Publish(0.5)});
  it.Step();
  CHECK(it.client.running == 2);
  REQUIRE(Outcome(*task).has_value());
  CHECK(task->progress().version == WeightVersion(2));
  CHECK(task->progress().mismatches == 0);
}

TEST_CASE("a flipped bit is reported and repaired by the next round while the engine runs",
          "[verify]") {
  Running it;
  it.Flip(1);
  const OperatorTaskPtr task = it.Verify();
  it.Step();
  it.Step();
  REQUIRE(Outcome(*task).has_value());
  const TaskProgress found = task->progress();
  REQUIRE(found.mismatched.size() == 1);
  CHECK(found.mismatched[0].tensor == "x");
  CHECK(found.mismatched[0].expected == it.trainer.Digests(1, 0)[1]);
  CHECK(found.mismatched[0].found.has_value());
  CHECK(it.client.running == 1);
  CHECK_FALSE(it.daemon.worker.status().ready);
  CHECK(it.daemon.readiness.back().find("'x'") != std::string::npos);
  CHECK(it.daemon.worker.busy());
  CHECK_FALSE(it.daemon.subscription.live().has_value());

  it.Step();
  CHECK(it.Did("full 1 {1}"));
  CHECK(it.client.running == 1);
  CHECK(it.client.Holds(it.trainer, 1));
  CHECK(it.daemon.worker.status().ready);
  CHECK(it.daemon.worker.status().mismatches.verify == 1);
  CHECK(it.daemon.worker.status().repairs == 2);
}

TEST_CASE("drift is repaired on the way to a newer version that does not touch it", "[verify]") {
  Running it;
  it.Flip(1);
  const OperatorTaskPtr task = it.Verify();
  it.Step();
  it.Step();
  it.trainer.current()[0][0][0] ^= std::byte{1};  // of "w"
  it.daemon.Offer({1, it.trainer.Publish(0)});
  it.Step();
  CHECK(it.Did("object 1->2"));
  CHECK(it.Did("full 2 {1}"));
  CHECK_FALSE(it.Did("rejected 2"));
  CHECK(it.client.running == 2);
  CHECK(it.client.Holds(it.trainer, 2));
}

TEST_CASE("drift that cannot be repaired pauses the engine until the repair", "[verify]") {
  Running it;
  it.Flip(0);
  const OperatorTaskPtr task = it.Verify();
  it.trainer.fail_full = UnavailableError("the sender is away");
  it.Step();
  CHECK(it.client.running == 1);
  CHECK_FALSE(it.daemon.worker.Step().ok());
  CHECK(it.client.running == 0);
  CHECK(it.daemon.readiness.back().find("the sender is away") != std::string::npos);
  CHECK(it.daemon.worker.status().paused_since.has_value());
  CHECK(Outcome(*task).has_value());  // the verification continued

  it.trainer.fail_full = OkStatus();
  it.Step();
  CHECK(it.client.running == 1);
  CHECK(it.client.Holds(it.trainer, 1));
  CHECK(it.daemon.worker.status().ready);
  CHECK_FALSE(it.daemon.worker.status().paused_since.has_value());
}

TEST_CASE("a verification needs a committed version and ends when the engine detaches",
          "[verify]") {
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  Daemon daemon(trainer, ledger);
  const auto early = daemon.requests.Verify();
  REQUIRE(daemon.worker.Step().ok());
  REQUIRE(Outcome(**early).has_value());
  CHECK(absl::IsFailedPrecondition(*Outcome(**early)));

  Running it;
  const OperatorTaskPtr task = it.Verify();
  it.Step();
  it.daemon.registry.End(it.client.generation, UnavailableError("it hung up"));
  it.Step();
  REQUIRE(Outcome(*task).has_value());
  CHECK(absl::IsAborted(*Outcome(*task)));
  const OperatorTaskPtr cancelled = it.Verify();
  cancelled->Cancel();
  it.Step();
  CHECK_FALSE(it.daemon.worker.busy());
}

TEST_CASE("a verification that ends in its first batch is not shown any more", "[verify]") {
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  Daemon daemon(trainer, ledger);
  Client client(*trainer.layouts(), daemon.registry);
  client.views.pop_back();
  client.excluded = {"x"};
  daemon.Connect();
  client.Attach(trainer.layouts());
  daemon.Offer({trainer.Publish()});
  const auto task = daemon.requests.Verify();
  REQUIRE(task.ok());
  REQUIRE(daemon.worker.Step().ok());
  REQUIRE(Outcome(**task) == OkStatus());
  CHECK(daemon.worker.status().stage == "idle");
}

TEST_CASE("a verification that is cancelled is not shown any more", "[verify]") {
  Running it;
  const OperatorTaskPtr task = it.Verify();
  it.Step();
  CHECK(it.daemon.worker.status().stage == "verifying");
  CHECK(it.daemon.worker.status().stage_total_bytes == 140'000 + 4 * 99);
  task->Cancel();
  it.Step();
  CHECK(it.daemon.worker.status().stage == "idle");
}

TEST_CASE("drift found while rounds fail is looked at by the next round at once", "[scrub]") {
  Running it({.bytes_per_second_max = uint64_t{1} << 40});
  it.trainer.fail_objects = it.trainer.fail_full = UnavailableError("the sender is away");
  it.daemon.Offer({1, it.trainer.Publish()});
  Worker::Turn turn = it.daemon.worker.RunOnce();
  CHECK(turn.retry);
  CHECK(turn.wait == limits::kReconnectDelayMin);
  turn = it.daemon.worker.RunOnce();
  CHECK(turn.wait == 2 * limits::kReconnectDelayMin);
  it.Flip(1);
  turn = it.daemon.worker.RunOnce();
  CHECK_FALSE(turn.retry);
  CHECK(turn.wait == Duration::zero());
  CHECK(it.client.running == 1);
  it.daemon.worker.RunOnce();
  CHECK(it.client.running == 0);
}

TEST_CASE("a resync fetches what differs and a full resync fetches everything", "[resync]") {
  Running it;
  it.Flip(1);
  auto task = it.daemon.requests.Resync(false);
  REQUIRE(task.ok());
  it.Step();
  CHECK(Outcome(**task) == OkStatus());
  CHECK((*task)->progress().mismatches == 1);
  CHECK((*task)->progress().done_bytes == 140'000 + 4 * 99);
  CHECK(it.Did("full 1 {1}"));
  CHECK(it.client.running == 1);
  CHECK(it.client.Holds(it.trainer, 1));

  it.daemon.Offer({1, it.trainer.Publish()});
  task = it.daemon.requests.Resync(true);
  REQUIRE(task.ok());
  it.Step();
  CHECK(Outcome(**task) == OkStatus());
  CHECK(it.Did("full 2 {0,1}"));
  CHECK(it.client.running == 2);
  CHECK(it.client.Holds(it.trainer, 2));
  CHECK(it.daemon.worker.status().ready);
}

TEST_CASE("a resync that finds no sender keeps the proved version and tries again", "[resync]") {
  Running it;
  it.trainer.fail_full = UnavailableError("away");
  const auto task = it.daemon.requests.Resync(true);
  REQUIRE(task.ok());
  CHECK_FALSE(it.daemon.worker.Step().ok());
  CHECK(it.client.running == 1);
  CHECK(it.daemon.worker.status().ready);
  CHECK(absl::IsFailedPrecondition(it.daemon.requests.Resync(false).status()) == false);
  it.trainer.fail_full = OkStatus();
  it.Step();
  CHECK(Outcome(**task) == OkStatus());
}

TEST_CASE("a waiting resync does not hold the memory of a detached engine", "[resync]") {
  Running it;
  const std::weak_ptr<const AttachedMemory> memory = it.daemon.registry.Engine()->memory.front();
  it.trainer.fail_full = UnavailableError("away");
  const auto task = it.daemon.requests.Resync(true);
  REQUIRE(task.ok());
  CHECK_FALSE(it.daemon.worker.Step().ok());
  CHECK_FALSE(memory.expired());
  it.daemon.registry.End(it.client.generation, UnavailableError("it hung up"));
  it.Step();
  CHECK(memory.expired());
  CHECK_FALSE(Outcome(**task).has_value());
}

TEST_CASE("a drained receiver commits nothing and drift pauses its engine", "[drain]") {
  Running it;
  it.daemon.requests.SetDraining(true);
  CHECK(it.daemon.worker.status().drain == DrainStage::kDraining);
  it.daemon.Offer({1, it.trainer.Publish()});
  it.Step();
  CHECK(it.daemon.worker.status().drain == DrainStage::kDrained);
  CHECK(it.daemon.worker.status().stage == "drained");
  CHECK(it.client.running == 1);
  CHECK(it.daemon.readiness.back().find("drained") != std::string::npos);
  CHECK(absl::IsFailedPrecondition(it.daemon.requests.Resync(false).status()));

  it.Flip(1);
  it.Verify();
  for (int i = 0; i < 3; ++i) it.Step();
  CHECK(it.client.running == 0);
  it.daemon.requests.SetDraining(false);
  it.Step();
  CHECK(it.client.running == 2);
  CHECK(it.client.Holds(it.trainer, 2));
  CHECK(it.daemon.worker.status().last_commit->pause == Duration::zero());  // drift had paused it
  CHECK(it.daemon.worker.status().drain == DrainStage::kNone);
  CHECK(it.daemon.worker.status().ready);
}

TEST_CASE("the scrub finds a flipped bit by itself, and the next round repairs it", "[scrub]") {
  Running it({.bytes_per_second_max =
                  uint64_t{1} << 40});  // all of this memory in one batch, and due again at once
  const uint64_t passes = it.daemon.worker.status().scrub.passes;
  it.Step();
  CHECK(it.daemon.worker.status().scrub.passes == passes + 1);
  CHECK(it.daemon.worker.status().scrub.bytes == (passes + 1) * (140'000 + 4 * 99));
  CHECK(it.daemon.worker.status().scrub.last_pass_unix_seconds > 1.6e9);
  CHECK(it.daemon.worker.status().stage == "idle");
  CHECK_FALSE(it.daemon.worker.busy());

  it.Flip(1);
  it.trainer.fail_full = UnavailableError("the sender is away");
  it.Step();
  CHECK_FALSE(it.daemon.worker.status().ready);
  CHECK(it.daemon.readiness.back().find("'x'") != std::string::npos);
  CHECK(it.daemon.worker.status().mismatches.scrub == 1);
  CHECK(it.daemon.worker.status().mismatches.verify == 0);
  CHECK(it.daemon.worker.busy());
  CHECK_FALSE(it.daemon.worker.Step().ok());
  CHECK(it.client.running == 0);
  CHECK(it.daemon.worker.status().mismatches.scrub ==
        1);  // the same drift again: not counted again

  it.trainer.fail_full = OkStatus();
  it.Step();
  CHECK(it.client.running == 1);
  CHECK(it.client.Holds(it.trainer, 1));
  CHECK(it.daemon.worker.status().ready);
}

TEST_CASE("a worker with nothing to scrub waits", "[scrub]") {
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  Daemon daemon(trainer, ledger, {}, {.bytes_per_second_max = uint64_t{1} << 30});
  CHECK(daemon.worker.RunOnce().wait == limits::kReconnectDelayMax);  // no sender, no engine
  daemon.Connect();
  Client client(*trainer.layouts(), daemon.registry);
  client.Attach(trainer.layouts());
  CHECK(daemon.worker.RunOnce().wait == limits::kReconnectDelayMax);  // no version
  daemon.Offer({trainer.Publish()});
  CHECK(daemon.worker.RunOnce().wait < std::chrono::seconds(1));
  REQUIRE(client.running == 1);
}

TEST_CASE("an engine that holds no slice is not scrubbed", "[scrub]") {
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  Daemon daemon(trainer, ledger, {}, {.bytes_per_second_max = uint64_t{1} << 30});
  daemon.Connect();
  Client client(*trainer.layouts(), daemon.registry);
  client.views.clear();
  client.excluded = {"w", "x"};
  client.Attach(trainer.layouts());
  daemon.Offer({trainer.Publish()});
  for (int i = 0; i < 3; ++i) {
    CHECK(daemon.worker.RunOnce().wait == limits::kReconnectDelayMax);
  }
  CHECK(client.running == 1);
  CHECK(daemon.worker.status().scrub.bytes == 0);
}

TEST_CASE("the scrub respects its speed limit and commits continue", "[scrub]") {
  Running it(
      {.bytes_per_second_max = 1});  // a byte each second: one slice, then nothing for two days
  for (int i = 0; i < 5; ++i) it.Step();
  CHECK(it.daemon.worker.status().scrub.bytes == 140'000);
  CHECK(it.daemon.worker.status().scrub.passes == 0);
  it.Flip(1);
  it.daemon.Offer({1, it.trainer.Publish(0)});
  it.Step();
  CHECK(it.client.running == 2);
  CHECK(it.daemon.worker.status().mismatches.scrub == 0);
}

TEST_CASE("a scrub pass takes the configured time whatever the memory's size", "[scrub]") {
  Running it({.bytes_per_second_max = uint64_t{1} << 40, .pass = std::chrono::seconds(100)});
  const auto scrub = [&] { return it.daemon.worker.status().scrub; };
  for (int i = 0; i < 5; ++i) it.Step();
  CHECK(scrub().bytes == 140'000);  // the first slice, at once
  CHECK(scrub().pass_expected == std::chrono::seconds(100));
  it.daemon.clock.Jump(std::chrono::seconds(90));
  it.Step();
  CHECK(scrub().passes == 0);  // that slice alone is 99.7 of the 100 s
  it.daemon.clock.Jump(std::chrono::seconds(10));
  it.Step();
  CHECK(scrub().passes == 1);
  it.Step();
  CHECK(scrub().passes == 1);
  CHECK(scrub().bytes == 2 * 140'000 + 4 * 99);  // the next pass has begun
}

TEST_CASE("a delayed scrub catches up as fast as its cap allows", "[scrub]") {
  Running it({.bytes_per_second_max = uint64_t{1} << 40, .pass = std::chrono::seconds(100)});
  it.daemon.clock.Jump(std::chrono::seconds(1000));  // a long commit
  it.Step();
  REQUIRE(Eventually([&] {
    it.Step();
    return it.daemon.worker.status().scrub.passes == 1;
  }));
}

TEST_CASE("a scrub slowed by its cap reports the expected time and the age of its last pass",
          "[scrub]") {
  Running it({.bytes_per_second_max = 1000, .pass = std::chrono::seconds(10)});
  const ScrubProgress scrub = it.daemon.worker.status().scrub;
  CHECK(ToSeconds(scrub.pass_expected) == Approx(140.4).epsilon(0.01));
  REQUIRE(scrub.complete_since.has_value());  // counts from the first read of this engine
  it.daemon.clock.Jump(std::chrono::seconds(150));
  it.Step();
  CHECK(*it.daemon.worker.status().scrub.complete_since - *scrub.complete_since >=
        std::chrono::seconds(150));
  it.daemon.registry.End(it.client.generation, UnavailableError("it hung up"));
  it.Step();
  CHECK_FALSE(it.daemon.worker.status().scrub.complete_since.has_value());
}

TEST_CASE("an engine that attaches to a drained receiver stays paused", "[drain]") {
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  Daemon daemon(trainer, ledger);
  daemon.requests.SetDraining(true);
  REQUIRE(daemon.worker.Step().ok());
  CHECK(daemon.worker.status().drain == DrainStage::kDrained);
  daemon.Connect();
  Client client(*trainer.layouts(), daemon.registry);
  client.Attach(trainer.layouts());
  daemon.Offer({trainer.Publish()});
  REQUIRE(daemon.worker.Step().ok());
  CHECK(client.running == 0);
  daemon.requests.SetDraining(false);
  REQUIRE(daemon.worker.Step().ok());
  CHECK(client.running == 1);
}

TEST_CASE("a worker that has stopped refuses operator requests", "[worker]") {
  Running it;
  it.daemon.worker.Start();
  CHECK(it.daemon.worker.RequestStop(std::chrono::seconds(20)));
  it.daemon.worker.Join();
  CHECK(absl::IsUnavailable(it.daemon.requests.Verify().status()));
  CHECK(absl::IsUnavailable(it.daemon.requests.Resync(true).status()));
}

}  // namespace dws
