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
    Step();
    REQUIRE(client.running == 1);  // it attached paused: the first version needs no request
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
  it.trainer.ClearLog();
  it.Step();  // prepared once only
  CHECK(it.trainer.Log().empty());
  CHECK(it.client.running == 1);
  CHECK(it.client.pauses == 0);
  CHECK(it.client.Holds(it.trainer, 1));
  CHECK(it.daemon.worker.status().ready);
  CHECK(it.daemon.worker.status().stage == "staged");

  it.Ask(2);
  it.Step();
  CHECK(it.client.running == 2);
  CHECK(it.client.Holds(it.trainer, 2));
  CHECK(it.daemon.worker.status().stage == "idle");

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
  CHECK(it.client.running == 1);  // what its memory has
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
