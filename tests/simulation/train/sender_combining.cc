// Its part as a combiner, and what it hears from others that are. The ranks and units that it asks
// for are chosen at random in each attempt, since sums have to be right whatever senders know of
// each other.
#include "tests/simulation/train/sender_node.h"
#include "tests/simulation/train/train_world.h"

namespace dws::sim {

std::vector<std::optional<SenderHost>> SenderNode::Hosts() const {
  std::vector<std::optional<SenderHost>> hosts;
  for (uint32_t r = 0; r < world().ranks; ++r) {
    hosts.push_back(SenderHost{.id = fmt::to_string(world().senders[r]->site()),
                               .combines = world().combiners[r]});
  }
  return hosts;
}

void SenderNode::OpenCombined(const AttemptId& attempt) {
  for (auto& [owner, sums] : combined_) {
    sums.combined.assign(world().units, -1);  // nothing is cleared
    sums.waiting.clear();
    sums.active = false;
    (void)sums.state.Open(attempt);  // what was not asked for does not come early
  }
}

void SenderNode::Combine() {
  // Also when its own shard is sealed: a rank may not have heard that it is asked.
  if (!world().combiners[rank().value()] || !member_->rank_present()) return;
  if (opened_ != member_->record().attempt || opened_ != outbox_->attempt()) return;
  const std::vector<std::optional<SenderHost>> hosts = Hosts();
  const Combining combining = CombiningOf(rank(), hosts);
  for (const TrainerRank owner : combining.owners) Combine(owner, combining.ranks);
  // It knows other things of the host than the others do, and combines for the same owner.
  if (world().faulty && world().random.Chance(2)) {
    const TrainerRank other(static_cast<uint32_t>(world().random.Below(world().ranks)));
    if (hosts[other.value()]->id != hosts[rank().value()]->id) Combine(other, combining.ranks);
  }
  AskToCombine();
}

void SenderNode::Combine(TrainerRank owner, const std::vector<TrainerRank>& ranks) {
  Random& random = world().random;
  PieceSums& sums =
      combined_
          .try_emplace(
              owner, PieceSums{.combined_for = owner,
                               .state = AccumulateState(world().ranks, world().units, world().slots,
                                                        AccumulateState::Counts::kAsked)})
          .first->second;
  if (sums.state.attempt() != *opened_) {
    sums.combined.assign(world().units, -1);
    (void)sums.state.Open(*opened_);
  }
  if (sums.state.sealed()) return;
  if (!sums.active) {
    if (!outbox_->Hold(owner)) return;
    sums.active = true;
    sums.units.clear();
    for (uint32_t u = 0; u < world().units; ++u) sums.units.push_back(random.Chance(800));
    sums.state.Ask(rank());
  }
  // It hears later of some ranks that they are on its host.
  for (const TrainerRank other : ranks) {
    if (random.Chance(500)) sums.state.Ask(other);
  }
}

void SenderNode::AskToCombine() {
  for (auto& [owner, sums] : combined_) {
    if (!sums.active) continue;
    for (const TrainerRank other : sums.state.AsksDue(world().Now())) {
      Send(other, CombineRequest{.attempt = *opened_, .owner = owner, .units = sums.units});
    }
  }
}

void SenderNode::Forward() {
  for (auto& [owner, sums] : combined_) {
    if (!sums.state.TakeSealed().has_value()) continue;
    std::vector<UnitIndex> units;
    for (uint32_t u = 0; u < world().units; ++u) {
      if (sums.state.touched(UnitIndex(u))) units.emplace_back(u);
    }
    world().See(units.empty() ? "a combiner has nothing to send" : "the sums of a host are sent");
    outbox_->Forward(owner, units);
  }
}

void SenderNode::Hear(const TrainMessage& message, const CombineRequest& request) {
  if (request.attempt > outbox_->attempt()) world().See("a combiner asks early");
  const size_t routes = outbox_->routes().size();
  Refused(outbox_->OnCombineRequest(message.from, request));
  if (outbox_->routes().size() == routes || !outbox_->finish().has_value()) return;
  world().See("a combiner asks when the rank has finished");
}

}  // namespace dws::sim
