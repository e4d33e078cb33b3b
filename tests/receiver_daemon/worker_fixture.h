// A worker with all its collaborators: registry, subscription and ledger are real, trainer and
// engine are fakes. Tests drive its rounds one by one.
#pragma once

#include <fcntl.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "receiver_daemon/worker/worker.h"
#include "tests/fakes/jumping_clock.h"
#include "tests/fakes/memory_version_ledger.h"
#include "tests/receiver_daemon/fake_engine.h"
#include "tests/receiver_daemon/fake_trainer.h"

namespace dws {

inline std::vector<std::shared_ptr<const RankLayout>> OneRank(uint64_t elements = 70'000) {
  return {MakeRankLayout(
      {{.tensor = {.name = "w", .dtype = DType::kBF16, .shape = {elements}, .cuts = {}}},
       {.tensor = {.name = "x", .dtype = DType::kF32, .shape = {99}, .cuts = {}}}})};
}

// An engine rank and its client: its memory, and a lease that answers at once.
struct Client {
  Client(const LayoutSet& layouts, EngineRegistry& registry_in) : registry(registry_in) {
    views = WholeViews(layouts, 0, bytes);
    auto made = CreateHostRegion("client", bytes);
    REQUIRE(made.ok());
    created = *std::move(made);
  }
  void Attach(const LayoutSetPtr& layouts) {
    const std::vector<uint64_t> region_bytes = {bytes};
    auto mapping = MapEngine(*layouts, views, region_bytes, excluded);
    REQUIRE(mapping.ok());
    auto reserved = registry.Reserve({.engine_rank = 0,
                                      .engine_world_size = 1,
                                      .has_hook = false,
                                      .commits_on_request = on_request,
                                      .client = "test",
                                      .regions = {{.size_bytes = bytes}},
                                      .views = views,
                                      .mapping = *std::move(mapping),
                                      .layouts = layouts});
    REQUIRE(reserved.ok());
    generation = *reserved;
    std::vector<UniqueFd> fds;
    fds.emplace_back(::fcntl(created.fd.get(), F_DUPFD_CLOEXEC, 0));
    REQUIRE(registry.OnDescriptors(generation, std::move(fds), UniqueFd()).ok());
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
      ++pauses;
      if (hangs) return;
      if (on_pause) on_pause();
      running = 0;
      lease->OnPaused({.pause_id = pause->pause_id, .generation = generation});
    }
    if (const auto* resume = std::get_if<ResumeCommand>(&command)) {
      running = resume->version.version.value();
    }
  }
  // Returns whether memory is exactly what the trainer published, tensor by tensor.
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
  std::vector<std::string> excluded;
  uint64_t bytes = 0;
  CreatedRegion created;
  Generation generation;
  std::shared_ptr<EngineLease> lease;
  uint64_t running = 0;  // the version it may generate with; 0 = paused
  int pauses = 0;        // that it was asked for
  std::function<void()> on_pause;
  bool ended = false;
  bool hangs = false;       // keeps its lease but answers no pause
  bool on_request = false;  // attaches so that commits happen only when it asks
};

struct Daemon {
  explicit Daemon(FakeTrainer& trainer_in, MemoryReceiverLedger& ledger_in,
                  std::function<void(const CommitReport&)> on_commit_in = {},
                  const ScrubOptions& scrub = {}, const GroupPlace& place = {},
                  bool stale_keeps_ready = false, const CommitPolicy& policy = {})
      : trainer(trainer_in),
        ledger(ledger_in),
        on_commit(std::move(on_commit_in)),
        subscription(std::vector<std::string>(trainer_in.ranks().size(), "sender:1"),
                     ledger.state().stream(), changed, clock),
        options({.prepare = {.spool_folder = "/tmp", .staging_bytes_max = 1 << 24},
                 .pause_timeout = std::chrono::seconds(1),
                 .verify_batch_bytes = 1,  // a slice at a time
                 .scrub = scrub,
                 .stale = {.keeps_ready = stale_keeps_ready},
                 .commit_policy = policy}),
        group(MakeGroup(place)) {}

  std::unique_ptr<CommitGroup> MakeGroup(const GroupPlace& place) {
    if (place.group_id.empty()) return nullptr;
    std::optional<VersionAt> decided;
    if (const auto& open = ledger.state().decided()) decided = {open->stream, open->version};
    return std::make_unique<CommitGroup>(place, fmt::format("r{}", place.index), decided, registry,
                                         clock, changed, options.commit_policy);
  }

  void Connect() {
    const auto world_size = static_cast<uint32_t>(trainer.ranks().size());
    for (uint32_t r = 0; r < world_size; ++r) {
      subscription.OnConnect(SenderIndex(r));
      REQUIRE(subscription
                  .OnWelcome(SenderIndex(r), {.stream = trainer.stream(),
                                              .trainer_rank = TrainerRank(r),
                                              .world_size = world_size,
                                              .rank_epoch = RankEpoch(1),
                                              .layout = trainer.ranks()[r]})
                  .ok());
    }
  }
  void Offer(std::vector<uint64_t> versions) {
    for (uint32_t r = 0; r < trainer.ranks().size(); ++r) OfferOf(r, versions);
  }
  // What one rank offers.
  void OfferOf(uint32_t rank, const std::vector<uint64_t>& versions) {
    SenderAnnouncement announcement{
        .stream = trainer.stream(), .rank_epoch = RankEpoch(1), .versions = {}};
    for (const uint64_t version : versions) announcement.versions.emplace_back(version);
    if (!versions.empty()) {
      announcement.newest_token = StateToken(trainer.Digests(versions.back(), rank));
    }
    REQUIRE(subscription.OnAnnounce(SenderIndex(rank), ++nonce, announcement).ok());
  }

  FakeTrainer& trainer;
  uint64_t nonce = 0;
  MemoryReceiverLedger& ledger;
  std::function<void(const CommitReport&)> on_commit;
  std::function<void(Duration)> on_acknowledged = [](Duration) {};
  JumpingClock clock;
  ChangeSignal changed;
  ThreadPool pool{1};
  Subscription subscription;
  EngineRegistry registry{Generation(1), changed};
  OperatorRequests requests{changed};
  std::vector<std::string> readiness;
  const Worker::Options options;
  std::unique_ptr<CommitGroup> group;
  Worker worker{{.subscription = subscription,
                 .registry = registry,
                 .senders = trainer,
                 .sources = trainer.sources(),
                 .ledger = ledger,
                 .pool = pool,
                 .clock = clock,
                 .changed = changed,
                 .requests = requests,
                 .on_readiness =
                     [this](bool ready, const std::string& reason) {
                       readiness.push_back(ready ? "ready" : reason);
                     },
                 .on_commit = on_commit,
                 .on_acknowledged = [this](Duration took) { on_acknowledged(took); },
                 .liveness = nullptr,
                 .group = group.get()},
                options};
};

// A boundary that a test opens, and sees the end of.
class Opened {
 public:
  Opened(CommitBoundary& boundary, bool stays, uint64_t id = 7) : boundary_(boundary), id_(id) {
    REQUIRE(
        boundary.Begin(id, stays, [over = over_](const Status& status) { *over = status; }).ok());
  }
  void End() {
    boundary_.End(id_, [ended = ended_](const Status& status) { *ended = status; });
  }
  bool over() const { return over_->has_value(); }
  bool ended() const { return ended_->has_value(); }
  Status status() const { return over_->value(); }

 private:
  CommitBoundary& boundary_;
  const uint64_t id_;
  const std::shared_ptr<std::optional<Status>> over_ = std::make_shared<std::optional<Status>>();
  const std::shared_ptr<std::optional<Status>> ended_ = std::make_shared<std::optional<Status>>();
};

}  // namespace dws
