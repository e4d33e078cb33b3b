// The faults of a simulated job: one after the other until they stop.
#include <algorithm>

#include "tests/simulation/nodes/engine.h"
#include "tests/simulation/nodes/receiver.h"
#include "tests/simulation/nodes/sender.h"
#include "tests/simulation/nodes/trainer.h"
#include "tests/simulation/world.h"

namespace dws::sim {
namespace {

// Crashes the process, and starts it again some time later.
void Bounce(World& world, Process& process) {
  if (!process.up()) return;
  process.Crash();
  world.events.After(world.random.Below(6 * kRoundTrip) + kRoundTrip / 5,
                     [&process] { process.Start(); });
}

template <typename T>
T& Any(World& world, const std::vector<std::unique_ptr<T>>& all) {
  return *all[world.random.Below(all.size())];
}

}  // namespace

void World::ScheduleFault() {
  events.After(random.Below(5 * kRoundTrip) + 1, [this] {
    if (!faulty) return;
    Fault();
    ScheduleFault();
  });
}

void World::Fault() {
  ++faults;
  const uint64_t kind = random.Below(20);
  if (kind < 11) return FaultProcess(kind);
  if (kind < 17) return FaultNetwork(kind);
  if (kind == 17) return Any(*this, receivers).disk().FailNext(true);
  if (kind == 18) return Any(*this, deployments.back().senders).disk().FailNext(true);
  corrupt_permille = random.Pick<uint64_t>({0, 100, 500});
}

void World::FaultProcess(uint64_t kind) {
  Deployment& newest = deployments.back();
  switch (kind) {
    case 0:
    case 1:
    case 2:
      return Bounce(*this, Any(*this, receivers));
    case 3:
    case 4:
      return Bounce(*this, Any(*this, engines));
    case 5:
      return Bounce(*this, Any(*this, newest.senders));
    case 6:
      return Bounce(*this, *newest.trainer);
    case 7:  // all processes at once
      for (const auto& receiver : receivers) Bounce(*this, *receiver);
      for (const auto& engine : engines) Bounce(*this, *engine);
      for (const auto& sender : newest.senders) Bounce(*this, *sender);
      return Bounce(*this, *newest.trainer);
    case 8: {  // a host returns with another disk
      Sender& sender = Any(*this, newest.senders);
      Bounce(*this, sender);
      return sender.disk().Wipe();
    }
    case 9:
      return Any(*this, engines).Drift();
    default:
      if (deployments.size() > 1) return;
      // The job is started elsewhere, and the old one keeps running.
      newest.trainer->Replace();
      Deploy(200);
      std::fill(routes.begin(), routes.end(), deployments.size() - 1);
      for (const auto& sender : deployments.front().senders) Bounce(*this, *sender);
  }
}

void World::FaultNetwork(uint64_t kind) {
  switch (kind) {
    case 11: {  // a host is cut off
      const uint32_t site = Any(*this, receivers).site();
      const Time duration = random.Between(1, 10) * kRoundTrip;
      for (const auto& sender : deployments.back().senders)
        network.Cut(site, sender->site(), duration);
      for (const auto& other : receivers) network.Cut(site, other->site(), duration);
      return;
    }
    case 12:
      return network.Cut(Any(*this, receivers).site(),
                         Any(*this, deployments.back().senders).site(),
                         random.Between(1, 10) * kRoundTrip);
    case 13:
      return network.Cut(Any(*this, receivers).site(), Any(*this, receivers).site(),
                         random.Between(1, 10) * kRoundTrip);
    case 14:
      network.faults.loss_permille = random.Pick<uint64_t>({0, 5, 30, 200});
      return;
    case 15:
      network.faults.slow = random.Pick<uint64_t>({1, 3, 8});
      return;
    default: {
      // Addresses of some or all ranks lead to the old deployment, or back to the new one.
      const size_t to = random.Below(deployments.size());
      const bool all = random.Chance(500);
      for (uint32_t slot = 0; slot < ranks; ++slot) {
        if (routes[slot] == to || !(all || random.Chance(500))) continue;
        Bounce(*this, Route(slot));
        routes[slot] = to;
      }
    }
  }
}

void World::StopFaults() {
  Trace("the faults stop");
  faulty = false;
  corrupt_permille = 0;
  const bool mixed = network.faults.rude || network.faults.repeats;
  network.Heal();
  for (Deployment& old : deployments) {
    if (&old == &deployments.back()) continue;
    old.trainer->Crash();
    for (const auto& sender : old.senders) sender->Crash();
  }
  std::fill(routes.begin(), routes.end(), deployments.size() - 1);
  // Links that such a network has mixed up are replaced by new ones.
  if (mixed) {
    for (const auto& sender : deployments.back().senders) sender->Crash();
    for (const auto& receiver : receivers) receiver->Crash();
  }
  for (const auto& sender : deployments.back().senders) {
    sender->disk().FailNext(false);
    sender->Start();
  }
  deployments.back().trainer->Start();
  for (const auto& receiver : receivers) {
    receiver->disk().FailNext(false);
    receiver->Start();
  }
  for (const auto& engine : engines) engine->Start();
  deployments.back().trainer->Finish();
}

}  // namespace dws::sim
