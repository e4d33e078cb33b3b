// A sender that uses version numbers of its stream again, with other weights.
#include <catch2/catch.hpp>
#include <string>

#include "receiver_daemon/worker/worker.h"
#include "tests/receiver_daemon/worker_fixture.h"

namespace dws {
namespace {

// An engine that runs with version 3, and a sender that has gone back to version 1.
struct GoneBack {
  GoneBack() {
    daemon.Connect();
    client.Attach(trainer.layouts());
    daemon.Offer({trainer.Publish(), trainer.Publish(), trainer.Publish()});
    REQUIRE(daemon.worker.Step().ok());
    REQUIRE(client.running == 3);
    trainer.GoBackTo(1);
    trainer.ClearLog();
    daemon.Connect();
  }
  void Step() { REQUIRE(daemon.worker.Step().ok()); }
  uint64_t Renumbered() const { return daemon.worker.status().mismatches.renumbered; }

  FakeTrainer trainer{OneRank()};
  MemoryReceiverLedger ledger;
  Daemon daemon{trainer, ledger};
  Client client{*trainer.layouts(), daemon.registry};
};

}  // namespace

TEST_CASE("other weights under a known version number are fetched", "[number]") {
  GoneBack it;
  it.daemon.Offer({1, it.trainer.Publish(), it.trainer.Publish()});
  it.Step();
  CHECK(it.client.running == 3);
  CHECK(it.client.Holds(it.trainer, 3));
  CHECK(it.daemon.worker.status().ready);
  CHECK(it.Renumbered() == 2);
  CHECK(it.trainer.Log().back() == "committed 3");
  it.daemon.Offer({3, it.trainer.Publish()});
  it.Step();
  CHECK(it.client.Holds(it.trainer, 4));
  CHECK(it.Renumbered() == 2);
}

TEST_CASE("the same weights under the same number cause no transfer", "[number]") {
  GoneBack it;
  it.trainer.Publish(0);
  it.daemon.Offer({1, it.trainer.Publish(0)});
  it.Step();
  CHECK(it.daemon.worker.status().ready);
  CHECK(it.trainer.Log().empty());
  CHECK(it.Renumbered() == 0);
}

TEST_CASE("the engine is not ready while the new weights of its number cannot be fetched",
          "[number]") {
  GoneBack it;
  it.trainer.fail_full = UnavailableError("the sender is away");
  it.daemon.Offer({1, it.trainer.Publish(), it.trainer.Publish()});
  CHECK(absl::IsUnavailable(it.daemon.worker.Step()));
  CHECK_FALSE(it.daemon.worker.status().ready);
  CHECK(it.daemon.worker.status().reason.find("live memory is not version 3") != std::string::npos);
  CHECK_FALSE(it.daemon.subscription.live().has_value());  // it is not reported to the sender
  it.trainer.fail_full = OkStatus();
  it.Step();
  CHECK(it.client.Holds(it.trainer, 3));
  CHECK(it.daemon.worker.status().ready);
}

TEST_CASE("a later version is reached although its base number has other weights", "[number]") {
  GoneBack it;
  it.trainer.Publish();
  it.trainer.Publish();
  it.daemon.Offer({1, 2, 3, it.trainer.Publish()});
  it.Step();
  CHECK(it.client.running == 4);
  CHECK(it.client.Holds(it.trainer, 4));
}

TEST_CASE("a sender whose versions are all below the engine's does not keep it ready", "[number]") {
  GoneBack it;
  it.daemon.Offer({1, it.trainer.Publish()});
  it.Step();
  CHECK(it.client.running == 3);
  CHECK(it.daemon.worker.status().ready);
  it.daemon.clock.Jump(limits::kStaleAfterDefault);
  it.Step();
  CHECK_FALSE(it.daemon.worker.status().ready);
  CHECK(it.daemon.worker.status().reason.find("up to version 2, the engine has version 3") !=
        std::string::npos);
  it.daemon.Offer({1, 2, it.trainer.Publish()});  // version 3 again, renumbered
  it.Step();
  CHECK(it.daemon.worker.status().ready);
  CHECK(it.client.Holds(it.trainer, 3));
}

}  // namespace dws
