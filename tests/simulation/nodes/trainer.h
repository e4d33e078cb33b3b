// A simulated trainer: all its ranks, in steps. Publishes without waiting for receivers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/sync_state/live_state.h"
#include "tests/simulation/nodes/node.h"
#include "tests/simulation/weights.h"

namespace dws::sim {

class Sender;

class Trainer final : public Node {
 public:
  Trainer(World& world, uint32_t site, std::string name) : Node(world, site, std::move(name)) {}

  void Use(std::vector<Sender*> senders) { senders_ = std::move(senders); }
  // From now on every rank publishes one last version.
  void Finish() { finishing_ = true; }
  // The job was started elsewhere.
  void Replace() { replaced_ = true; }
  const std::optional<VersionAt>& last() const { return last_; }

 protected:
  void OnStart() override;
  void OnCrash() override;

 private:
  void Register(uint32_t rank);
  void Step();
  bool Publish(uint32_t rank, WeightVersion version, const RankWeights& weights);

  std::vector<Sender*> senders_;
  std::vector<std::optional<uint64_t>> sessions_;  // by rank
  std::vector<RankWeights> weights_;
  StreamId stream_;
  uint64_t version_ = 0;
  bool finishing_ = false;
  bool replaced_ = false;
  std::optional<VersionAt> last_;
};

}  // namespace dws::sim
