// First versions that are written to an engine's memory as they arrive, because it has not been
// released with an older one.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "receiver_daemon/worker/worker.h"
#include "tests/receiver_daemon/worker_fixture.h"

namespace dws {
namespace {

constexpr size_t kBlocks = 4;  // of both tensors

// An engine that waits for its first version, and transfers that could write at once.
struct Waiting {
  explicit Waiting(bool on_request = false) : trainer(OneRank(150'000)), daemon(trainer, ledger) {
    trainer.while_direct = [this](size_t block) {
      CHECK(client.running == 0);
      ++blocks;
      return while_direct ? while_direct(block) : OkStatus();
    };
    daemon.Connect();
    client.on_request = on_request;
    client.Attach(trainer.layouts());
    daemon.Offer({trainer.Publish()});
  }
  Status Step() { return daemon.worker.Step(); }
  WorkerStatus status() const { return daemon.worker.status(); }
  bool Did(const std::string& what) const {
    const std::vector<std::string> log = trainer.Log();
    return std::find(log.begin(), log.end(), what) != log.end();
  }

  FakeTrainer trainer;
  MemoryReceiverLedger ledger;
  Daemon daemon;
  Client client{*trainer.layouts(), daemon.registry};
  std::function<Status(size_t)> while_direct;
  size_t blocks = 0;  // that were sent
};

}  // namespace

TEST_CASE("a first version is written to live memory as it arrives", "[worker]") {
  Waiting it;
  it.while_direct = [&it](size_t block) {
    CHECK(it.status().staging_bytes == 0);
    if (block == 3) CHECK_FALSE(it.client.Holds(it.trainer, 1));
    return OkStatus();
  };
  REQUIRE(it.Step().ok());
  CHECK(it.blocks == kBlocks);
  CHECK(it.client.running == 1);
  CHECK(it.client.Holds(it.trainer, 1));
  CHECK(it.status().full_bytes == 150'000 * 2 + 99 * 4);
  CHECK(it.status().last_commit->repaired);
  CHECK(it.ledger.state().committed()->version == WeightVersion(1));
}

TEST_CASE("a first transfer that breaks leaves its engine paused, and all comes again",
          "[worker]") {
  Waiting it;
  it.while_direct = [](size_t block) {
    return block == 3 ? UnavailableError("the link is down") : OkStatus();
  };
  CHECK(absl::IsUnavailable(it.Step()));
  CHECK(it.client.running == 0);
  CHECK_FALSE(it.client.Holds(it.trainer, 1));
  CHECK_FALSE(it.status().ready);
  CHECK(it.daemon.readiness.back().find("the link is down") != std::string::npos);
  CHECK_FALSE(it.daemon.subscription.live().has_value());
  CHECK_FALSE(it.ledger.state().open_intent().has_value());

  it.blocks = 0;
  it.while_direct = nullptr;
  SECTION("the same version") {
    REQUIRE(it.Step().ok());
    CHECK(it.blocks == kBlocks);
    CHECK(it.client.running == 1);
    CHECK(it.client.Holds(it.trainer, 1));
  }
  SECTION("a newer one") {
    it.daemon.Offer({1, it.trainer.Publish()});
    REQUIRE(it.Step().ok());
    CHECK(it.blocks == kBlocks);
    CHECK(it.client.running == 2);
    CHECK(it.client.Holds(it.trainer, 2));
  }
}

TEST_CASE("what was written at once is read back before its engine runs", "[worker]") {
  Waiting it;
  it.while_direct = [&it](size_t block) {
    if (block == 3) it.client.created.region.mutable_bytes()[5] ^= std::byte{1};  // of the first
    return OkStatus();
  };
  CHECK(absl::IsDataLoss(it.Step()));
  CHECK(it.client.running == 0);
  CHECK(it.status().mismatches.write == 1);
  it.while_direct = nullptr;
  REQUIRE(it.Step().ok());
  CHECK(it.client.running == 1);
  CHECK(it.client.Holds(it.trainer, 1));
}

TEST_CASE("an engine that goes during its first version gets it when it is back", "[worker]") {
  Waiting it;
  it.while_direct = [&it](size_t block) {
    if (block == 2) it.daemon.registry.End(it.client.generation, UnavailableError("it died"));
    return OkStatus();
  };
  CHECK(absl::IsCancelled(it.Step()));
  CHECK(it.blocks == 3);
  CHECK_FALSE(it.client.Holds(it.trainer, 1));
  it.while_direct = nullptr;
  REQUIRE(it.Step().ok());
  it.client.Attach(it.trainer.layouts());
  REQUIRE(it.Step().ok());
  CHECK(it.client.running == 1);
  CHECK(it.client.Holds(it.trainer, 1));
}

TEST_CASE("memory that an engine may compute with is written in a commit only", "[worker]") {
  SECTION("it runs with a version") {
    Waiting it;
    REQUIRE(it.Step().ok());
    it.trainer.ClearLog();
    it.trainer.fail_objects = AbortedError("no delta");
    it.daemon.Offer({1, it.trainer.Publish()});
    REQUIRE(it.Step().ok());
    CHECK(it.client.running == 2);
    CHECK(it.Did("full 2 {0,1}"));
    CHECK(it.blocks == kBlocks);  // of version 1 only
  }
  SECTION("it runs with weights of its own until it asks") {
    Waiting it(true);
    REQUIRE(it.Step().ok());
    CHECK(it.Did("full 1 {0,1}"));
    CHECK(it.blocks == 0);
    CHECK_FALSE(it.client.Holds(it.trainer, 1));
  }
}

}  // namespace dws
