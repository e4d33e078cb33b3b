// Engines that let a commit happen only when they ask for one.
#include <catch2/catch.hpp>
#include <string>

#include "receiver_daemon/worker/worker.h"
#include "tests/receiver_daemon/worker_fixture.h"

namespace dws {
namespace {

// An engine that runs with version 1, and asks for what the test says.
struct Asking {
  Asking() {
    client.on_request = true;
    daemon.Connect();
    client.Attach(trainer.layouts());
    daemon.Offer({trainer.Publish()});
    Ask(1);
    Step();
    REQUIRE(client.running == 1);
    REQUIRE(client.pauses == 1);
    client.pauses = 0;
    Ask(0);
  }
  void Step() { REQUIRE(daemon.worker.Step().ok()); }
  void Ask(uint64_t version, std::optional<StreamId> stream = std::nullopt) {
    client.lease->OnCommitRequest({.version = WeightVersion(version), .stream = stream});
  }

  FakeTrainer trainer{OneRank()};
  MemoryReceiverLedger ledger;
  Daemon daemon{trainer, ledger};
  Client client{*trainer.layouts(), daemon.registry};
};

}  // namespace

TEST_CASE("a version is staged, and committed when the engine asks", "[request]") {
  Asking it;
  it.daemon.Offer({1, it.trainer.Publish()});
  it.Step();
  CHECK(it.trainer.Log().back() == "staged 2");  // known before the engine has to ask
  it.trainer.ClearLog();
  it.Step();  // prepared once only
  CHECK(it.trainer.Log().empty());
  CHECK(it.client.running == 1);
  CHECK(it.client.pauses == 0);
  CHECK(it.client.Holds(it.trainer, 1));
  CHECK(it.daemon.worker.status().ready);
  CHECK(it.daemon.worker.status().stage == "staged");
  CHECK(it.daemon.worker.status().staging_bytes > 0);

  it.Ask(2);
  it.Step();
  CHECK(it.client.running == 2);
  CHECK(it.client.Holds(it.trainer, 2));
  CHECK(it.daemon.worker.status().stage == "idle");
  CHECK(it.daemon.worker.status().staging_bytes == 0);

  // One request is not for the versions after it.
  it.daemon.Offer({2, it.trainer.Publish()});
  it.Step();
  CHECK(it.client.running == 2);
  CHECK(it.client.pauses == 1);
}

TEST_CASE("a newer version takes the place of a staged one", "[request]") {
  Asking it;
  it.daemon.Offer({1, it.trainer.Publish()});
  it.Step();
  it.daemon.Offer({1, 2, it.trainer.Publish()});
  it.Step();
  it.Ask(2);
  it.Step();
  CHECK(it.client.running == 3);
  CHECK(it.client.Holds(it.trainer, 3));
  CHECK(it.client.pauses == 1);
}

TEST_CASE("a request waits for the version it names", "[request]") {
  Asking it;
  it.Ask(3);
  it.daemon.Offer({1, it.trainer.Publish()});
  it.Step();
  CHECK(it.client.running == 2);  // on the way there
  it.daemon.Offer({2, it.trainer.Publish()});
  it.Step();
  CHECK(it.client.running == 3);
  it.daemon.Offer({3, it.trainer.Publish()});
  it.Step();
  CHECK(it.client.running == 3);
}

TEST_CASE("a request that is taken back lets no commit happen", "[request]") {
  Asking it;
  it.Ask(2);
  it.Ask(0);
  it.daemon.Offer({1, it.trainer.Publish()});
  it.Step();
  CHECK(it.client.running == 1);
}

TEST_CASE("a request for another stream is not met by numbers of this one", "[request]") {
  Asking it;
  StreamId other = it.trainer.stream();
  other.id_lo += 1;
  it.daemon.Offer({1, it.trainer.Publish()});
  it.Ask(1, it.trainer.stream());
  it.Step();
  CHECK(it.client.running == 1);  // it has that one
  it.Ask(1, other);
  it.Step();
  CHECK(it.client.running == 2);
}

TEST_CASE("an engine's own weights are not written before it asks", "[request]") {
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  Daemon daemon(trainer, ledger);
  Client client(*trainer.layouts(), daemon.registry);
  client.on_request = true;
  daemon.Connect();
  client.Attach(trainer.layouts());
  daemon.Offer({trainer.Publish()});
  for (int i = 0; i < 3; ++i) REQUIRE(daemon.worker.Step().ok());
  CHECK(daemon.worker.status().stage == "staged");
  CHECK_FALSE(daemon.worker.status().paused_since.has_value());
  CHECK_THAT(daemon.worker.status().reason, Catch::Contains("runs with weights of its own"));
  CHECK(client.pauses == 0);
  CHECK_FALSE(client.Holds(trainer, 1));
  client.lease->OnCommitRequest({.version = WeightVersion(1), .stream = std::nullopt});
  REQUIRE(daemon.worker.Step().ok());
  CHECK(client.running == 1);
  CHECK(client.Holds(trainer, 1));
}

TEST_CASE("a pause that timed out lets no commit happen after the request is taken back",
          "[request]") {
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  Daemon daemon(trainer, ledger);
  Client client(*trainer.layouts(), daemon.registry);
  client.on_request = true;
  client.hangs = true;
  daemon.Connect();
  client.Attach(trainer.layouts());
  daemon.Offer({trainer.Publish()});
  const auto ask = [&client](uint64_t version) {
    client.lease->OnCommitRequest({.version = WeightVersion(version), .stream = std::nullopt});
  };
  ask(1);
  CHECK(absl::IsDeadlineExceeded(daemon.worker.Step()));
  REQUIRE(client.pauses == 1);
  ask(0);
  client.lease->OnPaused({.pause_id = 1, .generation = client.generation});  // late
  for (int i = 0; i < 3; ++i) REQUIRE(daemon.worker.Step().ok());
  CHECK_FALSE(client.Holds(trainer, 1));
  CHECK(daemon.worker.status().stage == "staged");
  ask(1);
  REQUIRE(daemon.worker.Step().ok());
  CHECK(client.running == 1);
  CHECK(client.Holds(trainer, 1));
}

TEST_CASE("a staged version whose number is published again is prepared again", "[request]") {
  Asking it;
  it.daemon.Offer({1, it.trainer.Publish()});
  it.Step();
  REQUIRE(it.daemon.worker.status().stage == "staged");
  it.trainer.GoBackTo(1);
  it.daemon.Connect();
  it.daemon.Offer({1, it.trainer.Publish()});  // other weights under the number 2
  it.Ask(2);
  it.Step();
  CHECK(it.client.running == 2);
  CHECK(it.client.Holds(it.trainer, 2));
}

TEST_CASE("what is staged is dropped when the receiver is drained", "[request]") {
  Asking it;
  it.daemon.Offer({1, it.trainer.Publish()});
  it.Step();
  REQUIRE(it.daemon.worker.status().staging_bytes > 0);
  it.daemon.requests.SetDraining(true);
  it.Step();
  CHECK(it.daemon.worker.status().staging_bytes == 0);
  CHECK(it.daemon.worker.status().stage == "drained");
}

TEST_CASE("a verification does not hide for ever that a version is staged", "[request]") {
  Asking it;
  it.daemon.Offer({1, it.trainer.Publish()});
  it.Step();
  const auto task = it.daemon.requests.Verify();
  REQUIRE(task.ok());
  it.Step();
  CHECK(it.daemon.worker.status().stage == "verifying");
  CHECK(it.daemon.worker.status().staging_bytes > 0);
  it.Step();
  REQUIRE((*task)->Await(Duration::zero()) == OkStatus());
  CHECK(it.daemon.worker.status().stage == "staged");
}

TEST_CASE("the time a staged version waits for its engine is not time it took", "[request]") {
  Asking it;
  it.daemon.Offer({1, it.trainer.Publish()});
  it.Step();
  it.daemon.clock.Jump(std::chrono::seconds(1000));
  it.Ask(2);
  it.Step();
  REQUIRE(it.client.running == 2);
  CHECK(it.daemon.worker.status().last_commit->commit < std::chrono::seconds(500));
  CHECK(it.daemon.worker.status().last_commit->times[VersionStage::kHold] >=
        std::chrono::seconds(1000));
  CHECK(it.trainer.last_report.stage_seconds < 500);
}

TEST_CASE("a request without a stream is met in the target's stream only", "[request]") {
  const StreamId old{.incarnation = 1, .id_hi = 1, .id_lo = 1};
  const StreamId now{.incarnation = 2, .id_hi = 2, .id_lo = 2};
  EngineLease lease(0, Generation(1), {.request = true});
  REQUIRE(lease.Open({.send = [](const LeaseCommand&) {}, .end = [](const Status&) {}}).ok());
  lease.OnCommitRequest({.version = WeightVersion(7), .stream = std::nullopt});
  const auto may = [&](const StreamId& stream, uint64_t version, const StreamId& target) {
    return lease.MayCommit(
        {.live = VersionAt{stream, WeightVersion(version)}, .target = {target, WeightVersion(8)}});
  };
  CHECK(may(old, 7, now));
  CHECK_FALSE(may(now, 7, now));
  CHECK(may(now, 6, now));
}

TEST_CASE("what is staged for an engine that attaches again is prepared again", "[request]") {
  Asking it;
  it.daemon.Offer({1, it.trainer.Publish()});
  it.Step();
  REQUIRE(it.daemon.worker.status().stage == "staged");
  it.daemon.registry.End(it.client.generation, UnavailableError("it hung up"));
  it.Step();
  it.client.running = 0;
  it.client.Attach(it.trainer.layouts());
  it.Step();
  CHECK(it.client.running == 1);  // the version in its memory
  CHECK(it.daemon.worker.status().stage == "staged");
  it.Ask(2);
  it.Step();
  CHECK(it.client.running == 2);
  CHECK(it.client.Holds(it.trainer, 2));
}

TEST_CASE("drift in an engine that asks for nothing makes it not ready, without a pause",
          "[request]") {
  Asking it;
  it.daemon.Offer({1, it.trainer.Publish()});
  it.Ask(2);
  it.Step();
  REQUIRE(it.client.running == 2);
  it.trainer.GoBackTo(1);
  it.daemon.Connect();
  it.daemon.Offer({1, it.trainer.Publish()});  // other weights under the number 2
  it.Step();
  CHECK(it.client.running == 2);
  CHECK(it.client.pauses == 1);
  CHECK_FALSE(it.daemon.worker.status().ready);
  CHECK_THAT(it.daemon.worker.status().reason, Catch::Contains("asks for a version"));

  it.daemon.Offer({2, it.trainer.Publish()});
  it.Ask(3);
  it.Step();
  CHECK(it.client.running == 3);
  CHECK(it.client.Holds(it.trainer, 3));
  CHECK(it.daemon.worker.status().ready);
}

TEST_CASE("an engine of a commit group cannot say when to commit", "[request]") {
  FakeTrainer trainer(OneRank());
  ChangeSignal changed;
  EngineRegistry registry(Generation(1), changed, Coverage::kShare);
  const auto plan = [&](uint32_t rank, bool on_request) {
    AttachPlan made;
    made.engine_rank = rank;
    made.engine_world_size = 2;
    made.commits_on_request = on_request;
    made.layouts = trainer.layouts();
    return made;
  };
  CHECK_THAT(std::string(Message(registry.Reserve(plan(0, true)).status())),
             Catch::Contains("commit group"));
  CHECK(registry.Reserve(plan(0, false)).ok());
}

}  // namespace dws
