// The course of one seed: faults until they stop, then the promises that hold without them.
#include "tests/simulation/train/train_world.h"

#include <algorithm>

#include "tests/simulation/train/rank_node.h"
#include "tests/simulation/train/sender_node.h"

namespace dws::sim {
namespace {

constexpr Time kProgressMax = 60 * kRoundTrip;  // the promised limit for two minibatches
constexpr Time kStoppedFor = 30 * kRoundTrip;   // longer than the timeout of a peer
constexpr Time kRestartMax = 4 * kRoundTrip;
constexpr Time kWatch = 2 * kRoundTrip;

}  // namespace

TrainWorld::TrainWorld(const Options& given) : Course(given) {
  ranks = static_cast<uint32_t>(random.Between(1, 6));
  units = static_cast<uint32_t>(random.Between(1, 3));
  slots = static_cast<uint32_t>(random.Between(1, 3));
  compute = random.Pick({kRoundTrip / 8, kRoundTrip / 2, 2 * kRoundTrip});
  stop_at_ = random.Between(40, 120) * kRoundTrip;
  network.faults.rude = random.Chance(300);
  network.faults.repeats = random.Chance(500);
  const auto on_host = static_cast<uint32_t>(random.Pick<uint64_t>({1, 1, 2, 3}));
  const bool combine = random.Chance(500);
  for (uint32_t r = 0; r < ranks; ++r) combiners.push_back(combine && random.Chance(800));
  durable.assign(ranks, WeightVersion(1));
  for (uint32_t r = 0; r < ranks; ++r) {
    const uint32_t site = r / on_host;
    memories.push_back(std::make_unique<HostMemory>());
    senders.push_back(std::make_unique<SenderNode>(*this, site, TrainerRank(r)));
    rank_nodes.push_back(std::make_unique<RankNode>(*this, site, TrainerRank(r)));
  }
  std::vector<Shard> weights(ranks, Shard(units));
  for (Shard& shard : weights) {
    for (int64_t& element : shard) element = static_cast<int64_t>(random.Below(1000));
  }
  truth.Start(++incarnation_, WeightVersion(1), weights);
  StartJob();
  WatchLeader();
}

TrainWorld::~TrainWorld() = default;

TrainingJob TrainWorld::job() const {
  return {.job_id = "job", .stream = {.incarnation = incarnation_}, .world_size = ranks};
}

void TrainWorld::StartJob() {
  restarting_ = false;
  for (uint32_t r = 0; r < ranks; ++r) {
    senders[r]->Start();
    rank_nodes[r]->Start();
  }
}

void TrainWorld::OnDeath(TrainerRank rank) {
  const uint32_t r = rank.value();
  if (senders[r]->up() || rank_nodes[r]->up()) {
    if (!senders[r]->up() || rank_nodes[r]->up()) return;
    senders[r]->Soon(1 + random.Below(100), [this, r] {
      if (!rank_nodes[r]->up()) senders[r]->OnRankGone();
    });
    return;
  }
  See("a rank and its sender are both lost");
  *memories[r] = {};
  const auto lost = [](const auto& memory) {
    return !memory->record.has_value() || !memory->record->attempt.has_value();
  };
  // Its ranks make a new incarnation, as at every start of a job.
  if (std::all_of(memories.begin(), memories.end(), lost)) AskForRestart("the whole job is lost");
}

void TrainWorld::AskForRestart(std::string_view why) {
  if (std::exchange(restarting_, true)) return;
  See(why);
  Trace("the job has to start again: {}", why);
  events.After(random.Below(kRestartMax), [this] { RestartJob(); });
}

// All processes are killed, and start from a checkpoint that all ranks have.
void TrainWorld::RestartJob() {
  for (uint32_t r = 0; r < ranks; ++r) {
    senders[r]->Crash();
    rank_nodes[r]->Crash();
  }
  const uint64_t all_have = std::min_element(durable.begin(), durable.end())->value();
  const WeightVersion version(
      std::max<uint64_t>(1, all_have - std::min(all_have, random.Below(3))));
  std::vector<Shard> weights;
  for (uint32_t r = 0; r < ranks; ++r) weights.push_back(truth.Weights(TrainerRank(r), version));
  durable.assign(ranks, version);
  truth.Start(++incarnation_, version, weights);
  last_epoch_ = 0;  // a restart counter, which an incarnation begins again
  ++restarts_;
  StartJob();
}

// As an operator, or a launcher, does.
void TrainWorld::WatchLeader() {
  const MinibatchLeaderState* leader = senders[0]->leader();
  if (leader != nullptr && leader->broken().has_value()) AskForRestart("a gradient is lost");
  events.After(kWatch, [this] { WatchLeader(); });
}

void TrainWorld::CheckVersions() {
  uint64_t least = UINT64_MAX;
  uint64_t most = 0;
  for (const auto& memory : memories) {
    if (!memory->record.has_value()) continue;
    least = std::min(least, memory->record->version.value());
    most = std::max(most, memory->record->version.value());
  }
  if (most > least + 1) Violate("ranks are at versions {} and {}", least, most);
}

void TrainWorld::Check() {
  const MinibatchLeaderState* leader = senders[0]->leader();
  if (leader == nullptr) return;
  const MinibatchLeaderState::Waiting waiting = leader->WaitsFor();
  if (waiting.ranks.empty() && !leader->broken().has_value()) {
    Violate("the leader waits for nobody to {}", waiting.what);
  }
  const bool decided = leader->phase() == MinibatchLeaderState::Phase::kPublishing;
  if (faulty && kills_at_decision_ && decided) KillAtDecision();
}

uint64_t TrainWorld::Newest() const {
  uint64_t newest = 1;
  for (const auto& memory : memories) {
    const auto& record = memory->record;
    if (record.has_value() && record->attempt.has_value()) {
      newest = std::max(newest, record->attempt->minibatch);
    }
  }
  return newest;
}

bool TrainWorld::AllReached(uint64_t minibatch) const {
  return std::all_of(memories.begin(), memories.end(), [&](const auto& memory) {
    const auto& record = memory->record;
    return record.has_value() && record->attempt.has_value() &&
           record->attempt->minibatch >= minibatch;
  });
}

bool TrainWorld::RunFor(Time duration) {
  const Time end = events.now() + duration;
  while (violation().empty() && events.RunNext(end)) Check();
  return violation().empty();
}

// A new start takes the job back, and gets the time again.
bool TrainWorld::RunUntilAll(uint64_t minibatch) {
  uint64_t restarts = restarts_;
  Time end = events.now() + kProgressMax;
  while (violation().empty() && !AllReached(minibatch)) {
    if (!events.RunNext(end)) break;
    Check();
    if (std::exchange(restarts, restarts_) == restarts_) continue;
    end = events.now() + kProgressMax;
    minibatch = 3;
  }
  if (!violation().empty() || AllReached(minibatch)) return violation().empty();
  const MinibatchLeaderState* leader = senders[0]->leader();
  std::string named;
  if (leader != nullptr) {
    for (const TrainerRank rank : leader->WaitsFor().ranks) {
      named += fmt::format(" {}", rank.value());
    }
    named = fmt::format("{}: ranks{}", leader->WaitsFor().what, named);
  }
  Violate("minibatch {} is not reached in time after the faults stopped; waits for {}", minibatch,
          named);
  return false;
}

// One rank is stopped for longer than any timeout.
void TrainWorld::StopOne() {
  const MinibatchLeaderState& leader = *senders[0]->leader();
  const uint64_t abandoned = leader.abandoned();
  const auto slow = static_cast<uint32_t>(random.Below(ranks));
  Trace("{} is stopped", rank_nodes[slow]->name());
  rank_nodes[slow]->Freeze();
  if (!RunFor(kStoppedFor)) return;
  const MinibatchLeaderState::Waiting waiting = leader.WaitsFor();
  if (waiting.ranks != std::vector<TrainerRank>{TrainerRank(slow)}) {
    Violate("rank {} is stopped, and the leader waits for {} other ranks to {}", slow,
            waiting.ranks.size(), waiting.what);
  }
  if (leader.abandoned() != abandoned) Violate("an attempt was abandoned for a slow rank");
  rank_nodes[slow]->Thaw();
}

// The leader itself is stopped for as long: it must not take the others for silent.
void TrainWorld::StopLeader() {
  const MinibatchLeaderState& leader = *senders[0]->leader();
  const uint64_t abandoned = leader.abandoned();
  Trace("{} is stopped", senders[0]->name());
  senders[0]->Freeze();
  if (!RunFor(kStoppedFor)) return;
  senders[0]->Thaw();
  if (!RunFor(kWatch)) return;
  if (leader.abandoned() != abandoned) Violate("an attempt was abandoned for a slow leader");
}

std::string TrainWorld::Run() {
  ScheduleFault();
  if (!RunFor(stop_at_)) return violation();
  StopFaults();
  if (!RunFor(kRestartMax + 1)) return violation();  // a restart that was asked for
  if (!RunUntilAll(Newest() + 2)) return violation();
  StopOne();
  if (!violation().empty() || !RunUntilAll(Newest() + 1)) return violation();
  StopLeader();
  if (!violation().empty() || !RunUntilAll(Newest() + 1)) return violation();
  last_minibatch = Newest() + 1;
  if (!RunUntilAll(last_minibatch + 1)) return violation();
  for (uint32_t r = 0; r < ranks; ++r) {
    const MemberRecord& record = *memories[r]->record;
    if (record.version != memories[0]->record->version) {
      Violate("at the end rank {} is at version {}, rank 0 at {}", r, record.version.value(),
              memories[0]->record->version.value());
    }
    truth.CheckWeights(TrainerRank(r), record.version, memories[r]->weights);
  }
  return violation();
}

}  // namespace dws::sim
