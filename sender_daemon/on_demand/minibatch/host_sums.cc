// Room is given to units in their order, owner by owner, once in a job: what has no room then goes
// to its owner directly. An owner's sums stay until the job ends.
#include "sender_daemon/on_demand/minibatch/host_sums.h"

#include <algorithm>
#include <utility>

#include "common/base/log/log.h"

namespace dws {
namespace {

constexpr uint64_t kLineElements = 64 / sizeof(float);  // as Accumulators fill units up

}  // namespace

HostSums::HostSums(Options options, Outputs outputs)
    : options_(std::move(options)), outputs_(std::move(outputs)) {}

void HostSums::Open(const AttemptId& attempt) {
  attempt_ = attempt;
  look_ = true;
  for (auto& [owner, entry] : owners_) {
    if (entry == nullptr) continue;
    entry->shard->Open(attempt);
    entry->active = entry->complete = false;
  }
}

uint64_t HostSums::PieceElements(size_t unit, TrainerRank owner) const {
  const std::vector<uint64_t>& by_owner = options_.pushed[unit];
  return by_owner.empty() ? options_.shards[unit].elements : by_owner.at(owner.value());
}

std::unique_ptr<HostSums::Owner> HostSums::Make(TrainerRank owner) {
  const uint64_t width = options_.exact ? sizeof(double) : sizeof(float);
  const uint64_t left = options_.bytes_max - room_bytes_;
  std::vector<GradientUnit> units;
  auto entry = std::make_unique<Owner>();
  uint64_t bytes = 0;
  for (size_t u = 0; u < options_.shards.size(); ++u) {
    const uint64_t elements = PieceElements(u, owner);
    const uint64_t fits = (left - bytes) / width / kLineElements * kLineElements;
    entry->units.push_back(elements <= fits);
    units.push_back({.name = options_.shards[u].name, .elements = elements <= fits ? elements : 0});
    if (elements > fits) continue;
    bytes += CeilDiv(elements, kLineElements) * kLineElements * width;
  }
  if (bytes == 0) return nullptr;
  auto sums = Accumulators::Create(std::move(units), {.exact = options_.exact, .bytes_max = left});
  if (!sums.ok()) {
    LogWarning("host_sums_not_made",
               {{"owner", owner.value()}, {"bytes", bytes}, {"reason", Message(sums.status())}});
    return nullptr;
  }
  entry->sums = std::make_shared<Accumulators>(*std::move(sums));
  room_bytes_ += entry->sums->size_bytes();
  OwnedShard::Work work = outputs_.work(owner, entry->sums);
  work.seal = [entry = entry.get()](const AttemptId&, double) { entry->complete = true; };
  work.add = [this, add = std::move(work.add)](TrainerRank from, const PiecePull& piece,
                                               UnitIndex unit, LentPiece lent) {
    bytes_ += lent.bytes.size();
    add(from, piece, unit, std::move(lent));
  };
  entry->shard = std::make_unique<OwnedShard>(
      OwnedShard::Options{.stream = options_.stream,
                          .ranks = options_.ranks,
                          .units = static_cast<uint32_t>(options_.shards.size()),
                          .combined_for = owner},
      [this, owner](TrainerRank to, const TrainBody& body) { outputs_.send(to, owner, body); },
      std::move(work));
  entry->shard->Open(attempt_);
  LogInfo("host_sums_made", {{"owner", owner.value()},
                             {"units", std::ranges::count(entry->units, true)},
                             {"of_units", options_.shards.size()},
                             {"bytes", entry->sums->size_bytes()}});
  return entry;
}

HostSums::Owner* HostSums::Find(TrainerRank owner) {
  const auto found = owners_.find(owner);
  return found == owners_.end() ? nullptr : found->second.get();
}

OwnedShard* HostSums::shard(TrainerRank owner) {
  Owner* const entry = Find(owner);
  return entry == nullptr ? nullptr : entry->shard.get();
}

void HostSums::OnConnect(TrainerRank from) {
  for (auto& [owner, entry] : owners_) {
    if (entry != nullptr && entry->active) entry->shard->OnConnect(from);
  }
}

void HostSums::Tick() {
  look_ = true;
  for (auto& [owner, entry] : owners_) {
    if (entry != nullptr) entry->shard->Tick();
  }
}

void HostSums::Begin(PushedPieces& pushed) {
  const Combining combining = CombiningOf(options_.self, outputs_.hosts());
  for (const TrainerRank owner : combining.owners) {
    if (!owners_.contains(owner)) owners_[owner] = Make(owner);
    Owner* const entry = Find(owner);
    if (entry == nullptr) continue;
    if (!entry->active && !pushed.Hold(owner)) continue;  // too late in this attempt
    entry->active = true;
    if (entry->complete || entry->shard->state().sealed()) continue;
    for (const TrainerRank rank : combining.ranks) entry->shard->Ask(rank);
  }
}

void HostSums::Settle(bool open, PushedPieces& pushed, TimePoint now) {
  if (!open || attempt_.minibatch == 0 || pushed.state().attempt() != attempt_) return;
  if (std::exchange(look_, false)) Begin(pushed);
  for (auto& [owner, entry] : owners_) {
    if (entry == nullptr || !entry->active) continue;
    for (const TrainerRank rank : entry->shard->AsksDue(now)) {
      outputs_.send(rank, owner,
                    CombineRequest{.attempt = attempt_, .owner = owner, .units = entry->units});
    }
    entry->shard->Settle(/*rank_present=*/true);
    if (std::exchange(entry->complete, false)) Forward(owner, *entry, pushed);
  }
}

void HostSums::Forward(TrainerRank owner, Owner& entry, PushedPieces& pushed) {
  std::vector<HostSum> sums;
  for (uint32_t u = 0; u < entry.units.size(); ++u) {
    if (!entry.shard->state().touched(UnitIndex(u))) continue;
    sums.push_back({.unit = UnitIndex(u),
                    .piece = {.dtype = entry.sums->sum_dtype(),
                              .bytes = entry.sums->Sums(u),
                              .keeper = entry.sums},
                    .rounded = options_.exact && !entry.sums->all_exact()});
  }
  pushed.Forward(owner, std::move(sums));
}

HostSums::Counts HostSums::counts() const {
  Counts counts{.room_bytes = room_bytes_, .pieces = 0, .bytes = bytes_};
  for (const auto& [owner, entry] : owners_) {
    if (entry != nullptr) counts.pieces += entry->shard->counts().added;
  }
  return counts;
}

}  // namespace dws
