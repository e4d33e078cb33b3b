// The worker's rounds; tests drive them one by one.
#include "receiver_daemon/worker/worker.h"

#include <catch2/catch.hpp>
#include <string>

#include "tests/receiver_daemon/worker_fixture.h"

namespace dws {

TEST_CASE("an engine is released with the first version and gets the next ones", "[worker]") {
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  Daemon daemon(trainer, ledger);
  REQUIRE(daemon.worker.Step().ok());
  CHECK(daemon.readiness.back() == "engine rank 0 is not attached");
  daemon.Connect();
  Client client(*trainer.layouts(), daemon.registry);
  client.Attach(trainer.layouts());
  REQUIRE(daemon.worker.Step().ok());
  CHECK(daemon.readiness.back().find("published no version yet") != std::string::npos);
  CHECK(client.running == 0);

  daemon.Offer({trainer.Publish()});
  REQUIRE(daemon.worker.Step().ok());
  CHECK(client.running == 1);
  CHECK(client.Holds(trainer, 1));
  CHECK(daemon.worker.status().ready);

  trainer.Publish();
  daemon.Offer({1, 2, trainer.Publish()});
  REQUIRE(daemon.worker.Step().ok());
  CHECK(client.running == 3);
  CHECK(client.Holds(trainer, 3));
  CHECK(daemon.worker.status().live->version == WeightVersion(3));
  CHECK(daemon.worker.status().commits == 2);
  CHECK(daemon.subscription.live() == daemon.worker.status().live);
}

TEST_CASE("the stages of a version add up to the time since its announcement", "[worker]") {
  using std::chrono::seconds;
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  Daemon daemon(trainer, ledger);
  daemon.Connect();
  daemon.Offer({trainer.Publish()});
  daemon.clock.Jump(seconds(10'000));  // until there is an engine
  Client client(*trainer.layouts(), daemon.registry);
  client.Attach(trainer.layouts());
  const auto times = [&daemon] { return daemon.worker.status().last_commit->times; };
  REQUIRE(daemon.worker.Step().ok());
  REQUIRE(client.running == 1);
  CHECK(times().sum() < seconds(20));

  const TimePoint offered = daemon.clock.Now();
  daemon.Offer({1, trainer.Publish()});
  daemon.clock.Jump(seconds(300));
  trainer.damage_object = [&daemon](auto&) { daemon.clock.Jump(seconds(70)); };  // a transfer
  client.on_pause = [&daemon] { daemon.clock.Jump(seconds(40)); };               // a forward pass
  REQUIRE(daemon.worker.Step().ok());
  const Duration took = daemon.clock.Now() - offered;
  REQUIRE(client.running == 2);
  CHECK(times()[VersionStage::kQueue] >= seconds(300));
  CHECK(times()[VersionStage::kFetch] >= seconds(70));
  CHECK(times()[VersionStage::kGate] >= seconds(40));
  CHECK(times()[VersionStage::kStage] > Duration::zero());
  CHECK(times()[VersionStage::kWrite] > Duration::zero());
  CHECK(times()[VersionStage::kAcknowledge] > Duration::zero());
  CHECK(times().since_announced() == times().sum());
  CHECK(times().sum() <= took);
  CHECK(times().sum() > took - seconds(5));

  // A repair of what was announced long ago begins when it is looked at.
  daemon.clock.Jump(seconds(10'000));
  client.created.region.mutable_bytes()[0] ^= std::byte{1};
  trainer.damage_object = [](auto&) {};
  client.on_pause = [] {};
  REQUIRE(daemon.requests.Verify().ok());
  while (daemon.worker.status().commits == 2) REQUIRE(daemon.worker.Step().ok());
  CHECK(client.Holds(trainer, 2));
  CHECK(times().sum() < seconds(20));
}

TEST_CASE("an engine that attaches again with its memory intact is released without a transfer",
          "[worker]") {
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  Daemon daemon(trainer, ledger);
  daemon.Connect();
  Client client(*trainer.layouts(), daemon.registry);
  client.Attach(trainer.layouts());
  daemon.Offer({trainer.Publish()});
  REQUIRE(daemon.worker.Step().ok());

  daemon.registry.End(client.generation, UnavailableError("it hung up"));
  CHECK(client.ended);
  REQUIRE(daemon.worker.Step().ok());
  CHECK_FALSE(daemon.worker.status().ready);
  CHECK_FALSE(daemon.subscription.live().has_value());

  // The trainer has published meanwhile: the old version first, then the delta.
  trainer.ClearLog();
  client.running = 0;
  client.Attach(trainer.layouts());
  daemon.Offer({1, trainer.Publish()});
  REQUIRE(daemon.worker.Step().ok());
  CHECK(client.running == 2);
  CHECK(client.Holds(trainer, 2));
  for (const std::string& what : trainer.Log()) CHECK(what.find("full") == std::string::npos);
}

TEST_CASE(
    "memory that is the oldest offered version gets a delta from it and is never released with it",
    "[worker]") {
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  trainer.Publish();
  trainer.Publish();
  trainer.Publish();
  REQUIRE(ledger.Append(StreamAccepted{.stream = trainer.stream()}).ok());
  // An engine that restarts with the checkpoint that version 1 is; its receiver was at version 2,
  // or was writing it.
  const int ended = GENERATE(0, 1, 2);
  if (ended > 0) {
    REQUIRE(ledger
                .Append(CommitIntent{.stream = trainer.stream(),
                                     .base = WeightVersion(1),
                                     .target = WeightVersion(2),
                                     .generation = Generation(9)})
                .ok());
  }
  if (ended > 1) {
    REQUIRE(ledger.Append(VersionCommitted{.stream = trainer.stream(), .version = WeightVersion(2)})
                .ok());
  }
  Daemon daemon(trainer, ledger);
  daemon.Connect();
  Client client(*trainer.layouts(), daemon.registry);
  const bool same = GENERATE(true, false);
  for (uint32_t s = 0; s < 2; ++s) {
    const SliceBytes& bytes = trainer.At(1, 0)[s];
    std::copy(bytes.begin(), bytes.end(),
              client.created.region.mutable_bytes().begin() +
                  static_cast<ptrdiff_t>(client.views[s].offset_bytes));
  }
  if (!same) client.created.region.mutable_bytes()[client.views[1].offset_bytes] ^= std::byte{1};
  client.Attach(trainer.layouts());
  daemon.Offer({1, 2, 3});
  REQUIRE(daemon.worker.Step().ok());
  CHECK(client.running == 3);
  CHECK(client.Holds(trainer, 3));
  bool delta = false;
  bool full = false;
  for (const std::string& what : trainer.Log()) {
    delta = delta || what == "object 1->3";
    full = full || what.starts_with("full 3");
    CHECK(what != "committed 1");
  }
  CHECK(delta == same);
  CHECK(full == !same);
  CHECK(trainer.rejections.empty());
  CHECK_FALSE(ledger.state().open_intent().has_value());
}

TEST_CASE("a receiver restarted in the middle of a commit repairs the engine before releasing it",
          "[worker]") {
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  trainer.Publish();
  trainer.Publish();
  REQUIRE(ledger.Append(StreamAccepted{.stream = trainer.stream()}).ok());
  REQUIRE(ledger
              .Append(CommitIntent{.stream = trainer.stream(),
                                   .base = WeightVersion(1),
                                   .target = WeightVersion(2),
                                   .generation = Generation(9)})
              .ok());
  Daemon daemon(trainer, ledger);
  daemon.Connect();
  Client client(*trainer.layouts(), daemon.registry);  // zeros: neither version
  client.Attach(trainer.layouts());
  daemon.Offer({1, 2});
  REQUIRE(daemon.worker.Step().ok());
  CHECK(client.running == 2);
  CHECK(client.Holds(trainer, 2));
  CHECK_FALSE(ledger.state().open_intent().has_value());
}

TEST_CASE("an engine keeps running while its sender is away", "[worker]") {
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  Daemon daemon(trainer, ledger);
  daemon.Connect();
  Client client(*trainer.layouts(), daemon.registry);
  client.Attach(trainer.layouts());
  daemon.Offer({trainer.Publish()});
  REQUIRE(daemon.worker.Step().ok());
  trainer.Publish();
  daemon.Offer({1, 2});
  trainer.fail_objects = UnavailableError("gone");
  CHECK(absl::IsUnavailable(daemon.worker.Step()));
  CHECK(client.running == 1);
  CHECK(daemon.worker.status().ready);
  daemon.subscription.OnDisconnect(SenderIndex(0), UnavailableError("gone"));
  CHECK(daemon.worker.Step().ok());
  CHECK(daemon.worker.status().ready);
}

// An engine that runs with version 1, and then loses its only sender.
struct Deserted {
  explicit Deserted(bool stale_keeps_ready = false)
      : daemon(trainer, ledger, {}, {}, {}, stale_keeps_ready) {
    daemon.Connect();
    client.Attach(trainer.layouts());
    daemon.Offer({trainer.Publish()});
    REQUIRE(daemon.worker.Step().ok());
    daemon.subscription.OnDisconnect(SenderIndex(0), UnavailableError("connection refused"));
    REQUIRE(daemon.worker.Step().ok());
    REQUIRE(daemon.worker.status().ready);
  }
  void Pass(Duration time) {
    daemon.clock.Jump(time);
    REQUIRE(daemon.worker.Step().ok());
  }
  Status Welcome(const StreamId& stream) {
    daemon.subscription.OnConnect(SenderIndex(0));
    return daemon.subscription.OnWelcome(SenderIndex(0), {.stream = stream,
                                                          .trainer_rank = TrainerRank(0),
                                                          .world_size = 1,
                                                          .rank_epoch = RankEpoch(1),
                                                          .layout = trainer.ranks()[0]});
  }

  FakeTrainer trainer{OneRank(), 7};
  MemoryReceiverLedger ledger;
  Daemon daemon;
  Client client{*trainer.layouts(), daemon.registry};
};

TEST_CASE("an engine without a sender keeps running and is not ready once stale", "[worker]") {
  Deserted it;
  it.Pass(limits::kStaleAfterDefault - std::chrono::seconds(1));
  CHECK(it.daemon.worker.status().ready);
  it.Pass(std::chrono::seconds(1));
  CHECK_FALSE(it.daemon.worker.status().ready);
  CHECK(it.daemon.readiness.back() ==
        "no accepted sender for more than 30 s: sender sender:1: connection refused");
  CHECK(it.daemon.worker.status().seconds_without_sender >= 30);
  CHECK(it.client.running == 1);
  it.Pass(std::chrono::hours(1));  // the reason does not change with time: one line in the log
  CHECK(it.daemon.readiness.size() == 2 + 1);

  REQUIRE(it.Welcome(it.trainer.stream()).ok());
  REQUIRE(it.daemon.worker.Step().ok());
  CHECK(it.daemon.worker.status().ready);
  CHECK(it.daemon.worker.status().seconds_without_sender == 0);
  CHECK(it.daemon.worker.status().stale.empty());
}

TEST_CASE("a sender refused for its lower incarnation does not keep an engine ready", "[worker]") {
  Deserted it;
  StreamId old = it.trainer.stream();
  --old.incarnation;
  REQUIRE_FALSE(it.Welcome(old).ok());
  it.Pass(limits::kStaleAfterDefault);
  CHECK_FALSE(it.daemon.worker.status().ready);
  CHECK(it.daemon.readiness.back().find("an old trainer is running again") != std::string::npos);
  StreamId twin = it.trainer.stream();
  ++twin.id_lo;
  REQUIRE_FALSE(it.Welcome(twin).ok());
  REQUIRE(it.daemon.worker.Step().ok());
  CHECK(it.daemon.readiness.back().find("two trainers claim the job") != std::string::npos);
  CHECK(it.client.running == 1);
}

TEST_CASE("a stale engine stays ready with stale_keeps_ready and its status says it is stale",
          "[worker]") {
  Deserted it(/*stale_keeps_ready=*/true);
  it.Pass(limits::kStaleAfterDefault);
  CHECK(it.daemon.worker.status().ready);
  CHECK(it.daemon.worker.status().stale.find("connection refused") != std::string::npos);
}

TEST_CASE("a stream that cannot be recorded makes the engine not ready and hides no other reason",
          "[worker]") {
  Deserted it;
  StreamId next = it.trainer.stream();
  ++next.incarnation;
  REQUIRE(it.Welcome(next).ok());
  const auto fail = [&](Duration time) {
    it.daemon.clock.Jump(time);
    it.ledger.FailNext(ResourceExhaustedError("disk full"));
    REQUIRE(absl::IsResourceExhausted(it.daemon.worker.Step()));
  };
  fail(Duration::zero());
  CHECK_FALSE(it.daemon.worker.status().ready);
  CHECK(it.daemon.readiness.back() ==
        "stream " + ToString(next) + " cannot be recorded: disk full");
  it.daemon.subscription.OnDisconnect(SenderIndex(0), UnavailableError("connection refused"));
  fail(limits::kStaleAfterDefault);
  CHECK_THAT(it.daemon.readiness.back(), Catch::Contains("cannot be recorded") &&
                                             Catch::Contains("no accepted sender for more than"));
  CHECK(it.client.running == 1);
  const size_t told = it.daemon.readiness.size();
  fail(std::chrono::hours(1));
  CHECK(it.daemon.readiness.size() == told);
  static_cast<void>(it.daemon.worker.Step());  // the disk has room again
  CHECK(it.daemon.readiness.back().find("cannot be recorded") == std::string::npos);
}

TEST_CASE("staleness is reported while the worker is busy", "[worker]") {
  Deserted it;
  it.daemon.clock.Jump(limits::kStaleAfterDefault);
  it.daemon.worker.ShowReadiness();
  CHECK_FALSE(it.daemon.worker.status().ready);
  CHECK_THAT(it.daemon.readiness.back(), Catch::Contains("connection refused"));
}

TEST_CASE("a version's age counts from its first commit whatever attaches later", "[worker]") {
  Deserted it;
  it.Pass(std::chrono::seconds(100));
  CHECK(it.daemon.worker.status().seconds_since_version >= 100);
  REQUIRE(it.Welcome(it.trainer.stream()).ok());
  it.daemon.registry.End(it.client.generation, UnavailableError("it hung up"));
  REQUIRE(it.daemon.worker.Step().ok());
  it.client.Attach(it.trainer.layouts());
  it.daemon.Offer({1});
  REQUIRE(it.daemon.worker.Step().ok());
  REQUIRE(it.client.running == 1);
  CHECK(it.daemon.worker.status().seconds_since_version >= 100);
  it.daemon.Offer({1, it.trainer.Publish()});
  REQUIRE(it.daemon.worker.Step().ok());
  CHECK(it.daemon.worker.status().seconds_since_version < 100);
}

TEST_CASE("an engine that reaches no newer version is not ready once it is stale", "[worker]") {
  const bool keeps_ready = GENERATE(false, true);
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  Daemon daemon(trainer, ledger, {}, {}, {}, keeps_ready);
  daemon.Connect();
  Client client(*trainer.layouts(), daemon.registry);
  client.Attach(trainer.layouts());
  daemon.Offer({trainer.Publish()});
  REQUIRE(daemon.worker.Step().ok());
  const auto fail = [&](Duration time) {
    daemon.clock.Jump(time);
    trainer.fail_objects = AbortedError("gone");  // so that full tensors are wanted
    trainer.fail_full = UnavailableError("the way is shut");
    daemon.Offer({trainer.Publish()});
    REQUIRE(absl::IsUnavailable(daemon.worker.Step()));
  };
  fail(Duration::zero());
  fail(limits::kStaleAfterDefault - std::chrono::seconds(1));
  CHECK(daemon.worker.status().ready);
  CHECK(daemon.worker.status().stale.empty());
  fail(std::chrono::seconds(1));
  CHECK(daemon.worker.status().ready == keeps_ready);
  const std::string stale = daemon.worker.status().stale;
  CHECK_THAT(stale, Catch::Contains("no newer version was reached for more than 30 s") &&
                        Catch::Contains("version 4 cannot be reached") &&
                        Catch::Contains("the way is shut"));
  CHECK(daemon.readiness.back() == (keeps_ready ? "ready" : stale));
  CHECK(client.running == 1);

  trainer.fail_full = OkStatus();
  daemon.Offer({trainer.Publish()});
  REQUIRE(daemon.worker.Step().ok());
  CHECK(daemon.worker.status().ready);
  CHECK(daemon.worker.status().stale.empty());
  CHECK(client.Holds(trainer, 5));
}

TEST_CASE("a second attempt that takes long does not make an engine stale", "[worker]") {
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  Daemon daemon(trainer, ledger);
  daemon.Connect();
  Client client(*trainer.layouts(), daemon.registry);
  client.Attach(trainer.layouts());
  daemon.Offer({trainer.Publish()});
  REQUIRE(daemon.worker.Step().ok());
  trainer.fail_objects = UnavailableError("the way is shut");
  daemon.Offer({1, trainer.Publish()});
  REQUIRE(absl::IsUnavailable(daemon.worker.Step()));

  bool looked = false;
  trainer.fail_objects = OkStatus();
  trainer.damage_object = [&](auto&) {
    daemon.clock.Jump(2 * limits::kStaleAfterDefault);
    daemon.worker.ShowReadiness();
    CHECK(daemon.worker.status().ready);
    CHECK(daemon.worker.status().stale == "");
    looked = true;
  };
  REQUIRE(daemon.worker.Step().ok());
  CHECK(looked);
  CHECK(client.running == 2);
}

TEST_CASE("full tensors that do not come by the required way are rejected to their sender",
          "[worker]") {
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  Daemon daemon(trainer, ledger);
  daemon.Connect();
  Client client(*trainer.layouts(), daemon.registry);
  client.Attach(trainer.layouts());
  daemon.Offer({trainer.Publish()});
  const bool damaged = GENERATE(false, true);
  trainer.refuse_full = damaged ? DataLossError("not as published") : UnavailableError("changed");
  REQUIRE(absl::IsUnavailable(daemon.worker.Step()));
  REQUIRE(trainer.rejections.size() == 1);
  CHECK(trainer.rejections[0].reason == trainer.refuse_full);
  // The sender looks at its memory again.
  CHECK(trainer.rejections[0].slices.size() == (damaged ? 2 : 0));
  CHECK(daemon.worker.status().nacks[damaged ? "data_loss" : "unavailable"] == 1);
  CHECK(daemon.readiness.back().find(Message(trainer.refuse_full)) != std::string::npos);
}

TEST_CASE("another layout in a new stream makes engines attach again", "[worker]") {
  FakeTrainer trainer(OneRank());
  FakeTrainer other(OneRank(80'000), 2);
  MemoryReceiverLedger ledger;
  Daemon daemon(trainer, ledger);
  daemon.Connect();
  Client client(*trainer.layouts(), daemon.registry);
  client.Attach(trainer.layouts());
  daemon.Offer({trainer.Publish()});
  REQUIRE(daemon.worker.Step().ok());

  REQUIRE(daemon.subscription
              .OnWelcome(SenderIndex(0), {.stream = other.stream(),
                                          .trainer_rank = TrainerRank(0),
                                          .world_size = 1,
                                          .rank_epoch = RankEpoch(1),
                                          .layout = other.ranks()[0]})
              .ok());
  REQUIRE(daemon.worker.Step().ok());
  CHECK(client.ended);
  CHECK_FALSE(daemon.worker.status().ready);
  CHECK(ledger.state().stream() == other.stream());
}

TEST_CASE("the registry accepts one engine for each rank", "[registry]") {
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  Daemon daemon(trainer, ledger);
  Client client(*trainer.layouts(), daemon.registry);
  client.Attach(trainer.layouts());
  const AttachPlan twin{.engine_rank = 0,
                        .engine_world_size = 1,
                        .has_hook = false,
                        .client = "twin",
                        .regions = {{.size_bytes = 1}},
                        .views = {},
                        .mapping = {},
                        .layouts = trainer.layouts()};
  CHECK(absl::IsAlreadyExists(daemon.registry.Reserve(twin).status()));
  // A registration that never handed its memory over blocks no other.
  AttachPlan lost = twin;
  lost.engine_rank = 7;
  CHECK(daemon.registry.Reserve(lost).ok());
  CHECK(daemon.registry.Reserve(lost).ok());
  AttachPlan second = twin;
  second.engine_rank = 1;
  second.engine_world_size = 2;
  CHECK(absl::IsInvalidArgument(daemon.registry.Reserve(second).status()));
  CHECK(absl::IsFailedPrecondition(
      daemon.registry.FindLease(0, Generation(client.generation.value() + 1)).status()));
  CHECK(absl::IsNotFound(daemon.registry.OnDescriptors(Generation(999), {}, UniqueFd())));
}

TEST_CASE("the worker's thread wakes up for changes and ends when asked", "[worker]") {
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  Daemon daemon(trainer, ledger);
  daemon.worker.Start();
  CHECK(daemon.worker.RequestStop(std::chrono::seconds(20)));
  daemon.worker.Join();
}

}  // namespace dws
