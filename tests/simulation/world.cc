#include "tests/simulation/world.h"

#include <algorithm>

#include "common/base/log/log.h"
#include "tests/simulation/nodes/engine.h"
#include "tests/simulation/nodes/receiver.h"
#include "tests/simulation/nodes/sender.h"
#include "tests/simulation/nodes/trainer.h"

namespace dws::sim {
namespace {

constexpr Time kFinishMax = 60 * kRoundTrip;     // for the trainer to publish a last version
constexpr Time kCatchUpMax = 20 * kRoundTrip;    // the promised limit
constexpr Time kSliceTransfer = kRoundTrip / 5;  // to read and to send one in full
// The simulated pool has one thread: full tensors of several ranks, which the daemon fetches in
// parallel, run one after the other, in up to three attempts.
constexpr Time kRankAfterAnother = 3 * kRoundTrip;

}  // namespace

void Truth::Capture(const VersionAt& at, uint32_t rank, uint32_t ranks,
                    const RankWeights& weights) {
  auto& version = versions_[{at.stream.incarnation, at.version.value()}];
  version.resize(ranks);
  version[rank] = weights;
}

const std::vector<std::optional<RankWeights>>* Truth::Find(const VersionAt& at) const {
  const auto found = versions_.find({at.stream.incarnation, at.version.value()});
  if (found == versions_.end()) return nullptr;
  for (const auto& rank : found->second) {
    if (!rank.has_value()) return nullptr;
  }
  return &found->second;
}

World::World(const Options& given) : Course(given) {
  SetLogLevel(LogLevel::kError);
  Build();
}

World::~World() = default;

void World::Build() {
  ranks = static_cast<uint32_t>(random.Between(1, 3));
  period = random.Pick({kRoundTrip / 4, kRoundTrip, 4 * kRoundTrip, 12 * kRoundTrip});
  versions_max = random.Between(1, 8);
  staging_bytes_max = random.Pick<uint64_t>({1000, 3000, 1'000'000});
  // By the seed alone: without it a world takes the same course as before there was one.
  const uint64_t kind = options.seed % 4;
  beside = kind == 2 ? Beside::kFaulty : kind == 3 ? Beside::kDead : Beside::kNone;
  stop_at_ = random.Between(30, 90) * kRoundTrip;
  network.faults.rude = random.Chance(150);
  network.faults.repeats = random.Chance(300);
  routes.assign(ranks, 0);
  Deploy(100);
  const uint64_t singles = random.Below(3);
  for (uint64_t i = 0; i < singles; ++i) AddEngine(1);
  const uint64_t groups = singles == 0 ? random.Between(1, 2) : random.Below(2);
  for (uint64_t i = 0; i < groups; ++i) AddEngine(static_cast<uint32_t>(random.Between(2, 3)));
  for (const auto& receiver : receivers) receiver->Start();
  for (const auto& engine : engines) engine->Start();
}

void World::Deploy(uint32_t site) {
  Deployment deployment;
  std::vector<Sender*> senders;
  for (uint32_t r = 0; r < ranks; ++r) {
    deployment.senders.push_back(std::make_unique<Sender>(
        *this, site + r, fmt::format("sender{}.{}", deployments.size(), r), r));
    senders.push_back(deployment.senders.back().get());
    senders.back()->Start();
  }
  deployment.trainer =
      std::make_unique<Trainer>(*this, site, fmt::format("trainer{}", deployments.size()));
  deployment.trainer->Use(std::move(senders));
  deployment.trainer->Start();
  deployments.push_back(std::move(deployment));
}

void World::AddEngine(uint32_t members) {
  const size_t number = units.size();
  EngineUnit unit{.name = fmt::format("engine{}", number)};
  auto group = std::make_shared<std::vector<Receiver*>>();
  const CommitPolicy policy =
      random.Pick<CommitPolicy>({{},
                                 {},
                                 {.kind = CommitPolicy::Kind::kBoundary},
                                 {.kind = CommitPolicy::Kind::kMaxBehind, .max_behind = 2}});
  for (uint32_t m = 0; m < members; ++m) {
    const auto site = static_cast<uint32_t>(10 * number + m);
    engines.push_back(
        std::make_unique<Engine>(*this, site, fmt::format("engine{}.{}", number, m), m, members));
    receivers.push_back(std::make_unique<Receiver>(
        *this, site, fmt::format("receiver{}.{}", number, m), *engines.back(), group, m, policy));
    engines.back()->Serve(*receivers.back());
    group->push_back(receivers.back().get());
    unit.parts.push_back(engines.back().get());
  }
  units.push_back(std::move(unit));
}

Sender& World::Route(uint32_t slot) { return *deployments[routes[slot]].senders[slot]; }

void World::Check() {
  if (!std::exchange(touched_, false)) return;
  for (EngineUnit& unit : units) CheckUnit(unit);
  refinement_.Check();
}

// An engine over several hosts generates only while all its ranks run.
void World::CheckUnit(EngineUnit& unit) {
  for (const Engine* part : unit.parts) {
    if (!part->running()) return;
  }
  const VersionAt claimed = unit.parts.front()->claimed();
  const auto* version = truth.Find(claimed);
  if (version == nullptr) {
    return Violate("{} generates with {}:{}, which was never published", unit.name,
                   claimed.stream.incarnation, claimed.version.value());
  }
  for (const Engine* part : unit.parts) {
    if (part->claimed() == claimed && part->Equals(*version)) continue;
    return Violate("{} generates with bytes that are not version {}:{}", part->name(),
                   claimed.stream.incarnation, claimed.version.value());
  }
  if (unit.highest.has_value() && Before(claimed, *unit.highest)) {
    return Violate("{} went back from {}:{} to {}:{}", unit.name, unit.highest->stream.incarnation,
                   unit.highest->version.value(), claimed.stream.incarnation,
                   claimed.version.value());
  }
  unit.highest = claimed;
}

bool World::Reached(const EngineUnit& unit, const VersionAt& at) const {
  return std::all_of(unit.parts.begin(), unit.parts.end(),
                     [&](const Engine* part) { return part->running() && part->claimed() == at; });
}

// Runs until the last version is published, and returns that.
std::optional<VersionAt> World::RunUntilNewest(Time end) {
  while (violation().empty() && !deployments.back().trainer->last().has_value()) {
    if (!events.RunNext(end)) break;
    Check();
  }
  return deployments.back().trainer->last();
}

std::string World::Run() {
  ScheduleFault();
  while (violation().empty() && events.RunNext(stop_at_)) Check();
  StopFaults();
  const std::optional<VersionAt> newest = RunUntilNewest(events.now() + kFinishMax);
  if (!violation().empty()) return violation();
  if (!newest.has_value()) return "the trainer cannot publish any more";
  const Time end = events.now() + kCatchUpMax + Time{ranks} * kSlices * kSliceTransfer +
                   Time{ranks - 1} * kRankAfterAnother;
  const auto all_there = [&] {
    return std::all_of(units.begin(), units.end(),
                       [&](const EngineUnit& unit) { return Reached(unit, *newest); });
  };
  while (violation().empty() && !all_there() && events.RunNext(end)) Check();
  for (const EngineUnit& unit : units) {
    if (!violation().empty() || Reached(unit, *newest)) continue;
    Violate("{} is not at {}:{} in time after the faults stopped", unit.name,
            newest->stream.incarnation, newest->version.value());
  }
  return violation();
}

}  // namespace dws::sim
