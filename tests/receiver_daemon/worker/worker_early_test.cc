// Deltas that are fetched and staged while the trainer's ranks capture them.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "receiver_daemon/worker/worker.h"
#include "tests/receiver_daemon/worker_fixture.h"

namespace dws {
namespace {

// An engine that runs with version 1, and senders that capture version 2.
struct Early {
  explicit Early(uint64_t elements = 70'000, double density = 0.01)
      : Early(OneRank(elements), density) {}
  explicit Early(std::vector<std::shared_ptr<const RankLayout>> ranks, double density = 0.01)
      : trainer(std::move(ranks)), daemon(trainer, ledger) {
    daemon.Connect();
    client.Attach(trainer.layouts());
    daemon.Offer({trainer.Publish()});
    Step();
    REQUIRE(client.running == 1);
    trainer.Publish(density);
    trainer.ClearLog();
    trainer.while_early = [this] {
      CHECK(client.running == 1);
      CHECK(client.Holds(trainer, 1));
      daemon.Offer({1, 2});
      return OkStatus();
    };
  }
  void Capture(uint64_t version, uint64_t base, uint32_t rank = 0) {
    daemon.subscription.OnReplacing(SenderIndex(rank), trainer.stream(), RankEpoch(1),
                                    WeightVersion(version), WeightVersion(base));
  }
  void Step() { REQUIRE(daemon.worker.Step().ok()); }
  bool Did(const std::string& what) const {
    const std::vector<std::string> log = trainer.Log();
    return std::find(log.begin(), log.end(), what) != log.end();
  }
  // That version 2 is taken when it is offered, after early staging was dropped or not tried.
  void ComesLater() {
    CHECK(client.running == 1);
    CHECK(client.Holds(trainer, 1));
    daemon.Offer({1, 2});
    Step();
    CHECK(client.running == 2);
    CHECK(client.Holds(trainer, 2));
    CHECK(Did("object 1->2"));
    CHECK(daemon.worker.status().early_staged == 0);
  }

  FakeTrainer trainer;
  MemoryReceiverLedger ledger;
  Daemon daemon;
  Client client{*trainer.layouts(), daemon.registry};
};

}  // namespace

TEST_CASE("a delta is staged while it is captured, and committed once it is offered", "[worker]") {
  Early early;
  early.Capture(2, 1);
  early.Step();
  CHECK(early.Did("early 1->2"));
  CHECK(early.Did("staged 2"));
  CHECK(early.client.Holds(early.trainer, 1));
  early.Step();
  CHECK(early.client.running == 2);
  CHECK(early.client.Holds(early.trainer, 2));
  CHECK_FALSE(early.Did("object 1->2"));
  CHECK(early.daemon.worker.status().early_staged == 1);
  CHECK(early.trainer.last_report.fetched_bytes == early.trainer.Object(0, 1, 2).size());
}

TEST_CASE("work on a version before its announcement is none of its time", "[worker]") {
  using std::chrono::seconds;
  Early early;
  early.trainer.while_early = [&early] {
    early.daemon.clock.Jump(seconds(1000));  // the capture
    early.daemon.Offer({1, 2});
    early.daemon.clock.Jump(seconds(50));  // the rest of the transfer
    return OkStatus();
  };
  early.Capture(2, 1);
  early.Step();
  early.daemon.clock.Jump(seconds(200));
  early.Step();
  REQUIRE(early.client.running == 2);
  const VersionTimes times = early.daemon.worker.status().last_commit->times;
  CHECK(times[VersionStage::kEarly] >= seconds(1000));
  CHECK(times[VersionStage::kEarly] < seconds(1020));
  CHECK(times[VersionStage::kFetch] >= seconds(50));
  CHECK(times[VersionStage::kHold] >= seconds(200));
  CHECK(times[VersionStage::kQueue] == Duration::zero());
  CHECK(times.since_announced() >= seconds(250));
  CHECK(times.since_announced() < seconds(270));
}

TEST_CASE("what had arrived before the link was lost is not fetched again", "[worker]") {
  Early early;
  early.trainer.early_frames_max = 1;  // of two slices
  early.trainer.while_early = [&early] {
    early.daemon.Offer({1, 2});
    return UnavailableError("the link is down");
  };
  early.Capture(2, 1);
  early.Step();
  CHECK(early.daemon.worker.status().early_staged == 1);
  early.Step();
  CHECK(early.client.running == 2);
  CHECK(early.client.Holds(early.trainer, 2));
  CHECK(early.trainer.last_report.fetched_bytes == early.trainer.Object(0, 1, 2).size());
}

TEST_CASE("a delta whose link is lost and that is not published is dropped", "[worker]") {
  Early early;
  early.trainer.fail_objects = AbortedError("version 2 is not retained");
  early.trainer.while_early = [] { return UnavailableError("the link is down"); };
  early.Capture(2, 1);
  early.Step();
  CHECK(early.daemon.worker.status().early_dropped == 1);
  early.trainer.fail_objects = OkStatus();
  early.ComesLater();
}

TEST_CASE("a delta whose capture is given up leaves nothing", "[worker]") {
  Early early;
  early.trainer.while_early = [] { return AbortedError("given up"); };
  early.Capture(2, 1);
  early.Step();
  CHECK(early.Did("early 1->2"));
  CHECK(early.daemon.worker.status().early_dropped == 1);
  early.Step();
  early.ComesLater();
}

TEST_CASE("frames of an attempt that was given up are not taken for those of the next",
          "[worker]") {
  Early early;
  early.trainer.while_early = [&early] {
    early.trainer.GoBackTo(1);
    early.trainer.Publish();  // the same number, other weights
    early.daemon.Offer({1, 2});
    return OkStatus();
  };
  early.Capture(2, 1);
  early.Step();
  CHECK(early.daemon.worker.status().early_dropped == 1);
  early.ComesLater();
  CHECK(early.trainer.rejections.empty());  // the sender is not to blame
}

TEST_CASE("a frame that is damaged early is no trouble", "[worker]") {
  Early early;
  early.trainer.damage_object = [](std::vector<std::byte>& object) {
    object.back() ^= std::byte{1};
  };
  early.Capture(2, 1);
  early.Step();
  CHECK(early.daemon.worker.status().early_dropped == 1);
  early.trainer.damage_object = [](auto&) {};
  early.ComesLater();
}

TEST_CASE("after a delta that was too large to be staged early, the next ones are not tried",
          "[worker]") {
  Early early(6'000'000, 0.5);  // 12 MB of 16 MiB, some of which is for what waits
  early.Capture(2, 1);
  early.Step();
  CHECK(early.Did("early 1->2"));
  CHECK(early.daemon.worker.status().early_dropped == 1);
  early.ComesLater();

  std::vector<uint64_t> offered{1, 2};
  uint64_t tried = 0;
  early.trainer.while_early = [&] {
    early.daemon.Offer(offered);
    return OkStatus();
  };
  for (uint64_t version = 3; tried == 0 && version < 30; ++version) {
    offered.push_back(early.trainer.Publish(0.0001));
    early.Capture(version, version - 1);
    early.Step();
    if (early.Did(fmt::format("early {}->{}", version - 1, version))) tried = version;
    early.daemon.Offer(offered);
    early.Step();
    REQUIRE(early.client.running == version);
  }
  CHECK(tried == 3 + 16);
  CHECK(early.client.Holds(early.trainer, tried));
}

TEST_CASE("a rank that captures the next version already is not read early", "[worker]") {
  Early early({MakeRankLayout({{.tensor = {.name = "w", .shape = {70'000}, .cuts = {}}},
                               {.tensor = {.name = "x", .shape = {99}, .cuts = {}}}}),
               MakeRankLayout({{.tensor = {.name = "y", .shape = {70'000}, .cuts = {}}}})});
  early.Capture(2, 1);
  early.Capture(2, 1, 1);
  const bool ahead = GENERATE(false, true);
  if (ahead) early.Capture(3, 2, 1);
  early.Step();
  CHECK(early.Did("early 1->2") == !ahead);
  if (ahead) return early.ComesLater();
  CHECK(early.Did("staged 2"));
}

TEST_CASE("a delta is staged early only from what the engine has", "[worker]") {
  Early early;
  SECTION("another base") { early.Capture(3, 2); }
  SECTION("a sender that does not have it") {
    early.trainer.while_early = nullptr;
    early.Capture(2, 1);
  }
  early.Step();
  CHECK_FALSE(early.Did("early 1->2"));
  CHECK_FALSE(early.Did("early 2->3"));
  early.ComesLater();
}

}  // namespace dws
