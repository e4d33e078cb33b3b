#include "tests/simulation/nodes/trainer.h"

#include "tests/simulation/nodes/sender.h"
#include "tests/simulation/world.h"

namespace dws::sim {

// A restarted trainer takes a higher incarnation, and counts from 1: from an older
// checkpoint, or from its last step. A trainer that was replaced meanwhile keeps its old stream.
void Trainer::OnStart() {
  Random& random = world().random;
  if (!replaced_) {
    const uint64_t incarnation = world().NextIncarnation();
    stream_ = {.incarnation = incarnation, .id_hi = random.Next(), .id_lo = random.Next()};
    version_ = 0;
    if (weights_.empty() || random.Chance(500)) weights_.assign(world().ranks, {});
  }
  sessions_.assign(world().ranks, std::nullopt);
  for (uint32_t r = 0; r < world().ranks; ++r) Register(r);
  After(random.Below(world().period) + 1, [this] { Step(); });
}

void Trainer::OnCrash() { sessions_.clear(); }

void Trainer::Register(uint32_t rank) {
  Sender& sender = *senders_[rank];
  const bool lost = !sessions_[rank].has_value() || !sender.HasSession(*sessions_[rank]);
  if (lost && sender.up()) {
    sessions_[rank].reset();
    const auto registered = [this, rank, stream = stream_](uint64_t session) {
      if (up() && stream == stream_) sessions_[rank] = session;
    };
    const Status status = sender.Register(stream_, registered);
    // Fenced: a newer trainer has taken over.
    if (!status.ok()) return world().Trace("{} is refused: {}", name(), Message(status));
  }
  After(kRoundTrip + world().random.Below(kRoundTrip), [this, rank] { Register(rank); });
}

void Trainer::Step() {
  Random& random = world().random;
  if (finishing_ && last_.has_value()) return;
  ++version_;
  for (RankWeights& rank : weights_) {
    for (uint64_t changes = random.Below(4); changes > 0; --changes) {
      rank[random.Below(kSlices)][random.Below(kWords)] += random.Next() >> random.Below(64);
    }
  }
  const WeightVersion version(version_);
  if (finishing_) {
    bool all = true;
    for (uint32_t r = 0; r < world().ranks; ++r) all &= Publish(r, version, weights_[r]);
    if (all) {
      last_ = VersionAt{.stream = stream_, .version = version};
      return world().Trace("{} has finished with {}", name(), version_);
    }
  } else {
    // Each rank at a different time.
    for (uint32_t r = 0; r < world().ranks; ++r) {
      After(random.Below(world().period),
            [this, r, version, weights = weights_[r]] { Publish(r, version, weights); });
    }
  }
  After(world().period, [this] { Step(); });
}

bool Trainer::Publish(uint32_t rank, WeightVersion version, const RankWeights& weights) {
  if (!sessions_[rank].has_value()) return false;
  return senders_[rank]->Publish(*sessions_[rank], version, weights).ok();
}

}  // namespace dws::sim
