// The worker's rounds, driven one by one: registry, subscription and ledger are real, trainer and
// engine are fakes.
#include "receiver_daemon/worker.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "tests/fakes/memory_version_ledger.h"
#include "tests/receiver_daemon/fake_engine.h"
#include "tests/receiver_daemon/fake_trainer.h"

namespace dws {
namespace {

std::vector<std::shared_ptr<const RankLayout>> OneRank(uint64_t elements = 70'000) {
  return {MakeRankLayout(
      {{.tensor = {.name = "w", .dtype = DType::kBF16, .shape = {elements}, .cuts = {}}},
       {.tensor = {.name = "x", .dtype = DType::kF32, .shape = {99}, .cuts = {}}}})};
}

// An engine rank as a client would be: its memory, and a lease that answers at once.
struct Client {
  Client(const LayoutSet& layouts, EngineRegistry& registry_in) : registry(registry_in) {
    views = WholeViews(layouts, 0, bytes);
    auto made = CreateHostRegion("client", bytes);
    REQUIRE(made.ok());
    created = *std::move(made);
  }
  void Attach(const LayoutSetPtr& layouts) {
    const std::vector<uint64_t> region_bytes = {bytes};
    auto mapping = MapEngine(*layouts, views, region_bytes, {});
    REQUIRE(mapping.ok());
    auto reserved = registry.Reserve({.engine_rank = 0,
                                      .engine_world_size = 1,
                                      .has_hook = false,
                                      .client = "test",
                                      .region_bytes = region_bytes,
                                      .mapping = *std::move(mapping),
                                      .layouts = layouts});
    REQUIRE(reserved.ok());
    generation = *reserved;
    std::vector<UniqueFd> fds;
    fds.emplace_back(::fcntl(created.fd.get(), F_DUPFD_CLOEXEC, 0));
    REQUIRE(registry.OnDescriptors(generation, std::move(fds)).ok());
    auto found = registry.FindLease(0, generation);
    REQUIRE(found.ok());
    lease = *found;
    REQUIRE(lease
                ->Open({.send = [this](const LeaseCommand& command) { On(command); },
                        .end = [this](const Status&) { ended = true; }})
                .ok());
  }
  void On(const LeaseCommand& command) {
    if (const auto* pause = std::get_if<PauseCommand>(&command)) {
      running = 0;
      lease->OnPaused(pause->pause_id, generation);
    }
    if (const auto* resume = std::get_if<ResumeCommand>(&command)) {
      running = resume->version.version.value();
    }
  }
  // Whether memory is exactly what the trainer published, tensor by tensor.
  bool Holds(const FakeTrainer& trainer, uint64_t version) const {
    for (uint32_t s = 0; s < 2; ++s) {
      const SliceBytes& expected = trainer.At(version, 0)[s];
      const ByteSpan held = created.region.bytes().subspan(views[s].offset_bytes, expected.size());
      if (!std::equal(held.begin(), held.end(), expected.begin())) return false;
    }
    return true;
  }

  EngineRegistry& registry;
  std::vector<EngineView> views;
  uint64_t bytes = 0;
  CreatedRegion created;
  Generation generation;
  std::shared_ptr<EngineLease> lease;
  uint64_t running = 0;  // the version it may generate with; 0 = paused
  bool ended = false;
};

struct Daemon {
  explicit Daemon(FakeTrainer& trainer_in, MemoryReceiverLedger& ledger_in)
      : trainer(trainer_in),
        ledger(ledger_in),
        subscription({"sender:1"}, ledger.state().stream(), changed) {}

  void Connect() {
    subscription.OnConnect(SenderIndex(0));
    REQUIRE(subscription
                .OnWelcome(SenderIndex(0), {.stream = trainer.stream(),
                                            .trainer_rank = TrainerRank(0),
                                            .world_size = 1,
                                            .rank_epoch = RankEpoch(1),
                                            .layout = trainer.ranks()[0]})
                .ok());
  }
  void Offer(std::vector<uint64_t> versions) {
    SenderAnnouncement announcement{
        .stream = trainer.stream(), .rank_epoch = RankEpoch(1), .versions = {}};
    for (const uint64_t version : versions) announcement.versions.emplace_back(version);
    REQUIRE(subscription.OnAnnounce(SenderIndex(0), 1, announcement).ok());
  }

  FakeTrainer& trainer;
  MemoryReceiverLedger& ledger;
  RealClock clock;
  ChangeSignal changed;
  ThreadPool pool{1};
  Subscription subscription;
  EngineRegistry registry{Generation(1), changed};
  std::vector<std::string> readiness;
  Worker worker{{.subscription = subscription,
                 .registry = registry,
                 .senders = trainer,
                 .ledger = ledger,
                 .pool = pool,
                 .clock = clock,
                 .changed = changed,
                 .on_readiness =
                     [this](bool ready, const std::string& reason) {
                       readiness.push_back(ready ? "ready" : reason);
                     }},
                {.prepare = {.spool_folder = "/tmp", .staging_bytes_max = 1 << 24},
                 .pause_timeout = std::chrono::seconds(1)}};
};

}  // namespace

TEST_CASE("an engine is released with the first version and follows the next ones", "[worker]") {
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

  // The trainer has moved on meanwhile: the old version first, then the delta.
  trainer.ClearLog();
  client.running = 0;
  client.Attach(trainer.layouts());
  daemon.Offer({1, trainer.Publish()});
  REQUIRE(daemon.worker.Step().ok());
  CHECK(client.running == 2);
  CHECK(client.Holds(trainer, 2));
  for (const std::string& what : trainer.Log()) CHECK(what.find("full") == std::string::npos);
}

TEST_CASE("a receiver that restarts in the middle of a commit repairs before it releases",
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

TEST_CASE("a sender that is away keeps a running engine running", "[worker]") {
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

TEST_CASE("the registry takes one engine for a rank, and tells what is missing", "[registry]") {
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  Daemon daemon(trainer, ledger);
  Client client(*trainer.layouts(), daemon.registry);
  client.Attach(trainer.layouts());
  const AttachPlan twin{.engine_rank = 0,
                        .engine_world_size = 1,
                        .has_hook = false,
                        .client = "twin",
                        .region_bytes = {1},
                        .mapping = {},
                        .layouts = trainer.layouts()};
  CHECK(absl::IsAlreadyExists(daemon.registry.Reserve(twin).status()));
  // One that never handed its memory over is in nobody's way.
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
  CHECK(absl::IsNotFound(daemon.registry.OnDescriptors(Generation(999), {})));
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
