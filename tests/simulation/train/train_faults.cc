// The faults of a simulated training job: one after the other until they stop.
#include <algorithm>

#include "tests/simulation/train/rank_node.h"
#include "tests/simulation/train/sender_node.h"
#include "tests/simulation/train/train_world.h"

namespace dws::sim {
namespace {

void Bounce(TrainWorld& world, TrainNode& node) {
  if (!node.up()) return;
  node.Crash();
  world.events.After(world.random.Below(6 * kRoundTrip) + 1, [&world, &node] {
    if (!world.restarting()) node.Start();
  });
}

void Stop(TrainWorld& world, TrainNode& node) {
  node.Freeze();
  world.Trace("{} is stopped", node.name());
  world.events.After(world.random.Between(1, 30) * kRoundTrip, [&world, &node] {
    if (world.faulty) node.Thaw();
  });
}

}  // namespace

void TrainWorld::ScheduleFault() {
  events.After(random.Below(8 * kRoundTrip) + 1, [this] {
    if (!faulty) return;
    Fault();
    ScheduleFault();
  });
}

void TrainWorld::Fault() {
  ++faults;
  const uint64_t kind = random.Below(18);
  if (kind < 13) return FaultProcess(kind);
  FaultNetwork(kind);
}

void TrainWorld::FaultProcess(uint64_t kind) {
  const uint64_t any = random.Below(ranks);
  switch (kind) {
    case 0:
    case 1:
    case 2:
      return Bounce(*this, *rank_nodes[any]);
    case 3:
    case 4:
      return Bounce(*this, *senders[any]);
    case 5:
    case 6:
      return Bounce(*this, *senders[0]);
    case 7:  // a host
      Bounce(*this, *senders[any]);
      return Bounce(*this, *rank_nodes[any]);
    case 8:
      return Stop(*this, *rank_nodes[any]);
    case 9:
      return Stop(*this, *senders[any]);
    case 10:
    case 11:
      kills_at_decision_ = true;
      return;
    default:
      if (random.Chance(500)) return AskForRestart("the job is started again");
      // All senders at once: no memory of a decision but the records.
      for (const auto& sender : senders) Bounce(*this, *sender);
  }
}

void TrainWorld::FaultNetwork(uint64_t kind) {
  const uint32_t site = senders[random.Below(ranks)]->site();
  const Time duration = random.Between(1, 15) * kRoundTrip;
  switch (kind) {
    case 13:
      for (const auto& other : senders) {
        if (other->site() != site) network.Cut(site, other->site(), duration);
      }
      return;
    case 14:
      return network.Cut(site, senders[random.Below(ranks)]->site(), duration);
    case 15:
      network.faults.loss_permille = random.Pick<uint64_t>({0, 2, 10, 50});
      return;
    case 16:
      network.faults.slow = random.Pick<uint64_t>({1, 3});
      return;
    default:
      damage_permille = random.Pick<uint64_t>({0, 20, 200});
  }
}

// The leader, or another, before all know the decision.
void TrainWorld::KillAtDecision() {
  kills_at_decision_ = false;
  const uint64_t victim = random.Chance(500) ? 0 : random.Below(ranks);
  See(victim == 0 ? "a leader dies when it has decided" : "a sender dies when Step is decided");
  if (random.Chance(500)) Bounce(*this, *rank_nodes[victim]);
  Bounce(*this, *senders[victim]);
}

void TrainWorld::StopFaults() {
  Trace("the faults stop");
  faulty = false;
  damage_permille = 0;
  const bool mixed = network.faults.rude || network.faults.repeats;
  network.Heal();
  for (uint32_t r = 0; r < ranks; ++r) {
    senders[r]->Thaw();
    rank_nodes[r]->Thaw();
    // Links that such a network has mixed up are replaced by new ones.
    if (mixed && random.Chance(500)) senders[r]->Crash();
    if (!restarting_) senders[r]->Start();
    if (!restarting_) rank_nodes[r]->Start();
  }
}

}  // namespace dws::sim
