// The base of the processes of a simulated training job: one that can also be stopped for a while,
// as SIGSTOP does, and its parts of a host.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/train_state/train_messages.h"
#include "tests/simulation/process.h"

namespace dws::sim {

class TrainWorld;

// The elements of a unit's shard are one number.
using Shard = std::vector<int64_t>;  // by unit
// Added to a gradient, it makes the sum one that is not finite.
inline constexpr int64_t kInfinity = int64_t{1} << 40;

// What rank and sender of one rank both map: it is lost when both have died.
struct HostMemory {
  std::optional<MemberRecord> record;
  Shard weights;  // of record->version
  Shard sums;     // the owner's accumulators
  std::vector<bool> touched;
  // By slot: the pushed gradient, by owner.
  std::vector<std::vector<int64_t>> outbox;
};

// A process that may be stopped. What happens to it meanwhile, happens when it goes on.
class TrainNode : public Process {
 public:
  TrainNode(TrainWorld& world, uint32_t site, std::string name, TrainerRank rank);

  TrainWorld& world() const { return world_; }
  TrainerRank rank() const { return rank_; }
  bool frozen() const { return frozen_; }
  // Up and not stopped.
  bool runs() const { return up() && !frozen_; }
  void Freeze() { frozen_ = up(); }
  void Thaw();
  // Runs `action` now, or when the process goes on.
  void Run(std::function<void()> action);
  void Soon(Time delay, std::function<void()> action);

 protected:
  void OnCrash() override;

 private:
  TrainWorld& world_;
  const TrainerRank rank_;
  bool frozen_ = false;
  std::deque<std::function<void()>> delayed_;
};

}  // namespace dws::sim
