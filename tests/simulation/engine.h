// A simulated engine rank: memory that outlives its receiver, and an execution lease.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "common/sync_state/live_state.h"
#include "tests/simulation/process.h"
#include "tests/simulation/weights.h"

namespace dws::sim {

class Receiver;

class Engine final : public Process {
 public:
  // Holds the slices whose number modulo `parts` is `part`.
  Engine(World& world, uint32_t site, std::string name, uint32_t part, uint32_t parts);

  void Serve(Receiver& receiver) { receiver_ = &receiver; }
  bool Holds(uint32_t rank, uint32_t slice) const {
    return (rank * kSlices + slice) % parts_ == part_;
  }

  // What the receiver does through the lease and the shared memory of `attachment`.
  uint64_t attachment() const { return attachment_; }
  void Pause(uint64_t attachment, std::function<void(const Status&)> done);
  void Resume(uint64_t attachment, const VersionAt& version);
  void Write(uint64_t attachment, uint32_t rank, uint32_t slice, uint32_t word, uint64_t value);
  std::vector<SliceState> ReadDigests(uint32_t rank);  // what had drifted is seen by it
  const Slice& Read(uint32_t rank, uint32_t slice) const { return memory_[rank][slice]; }
  // The receiver let go of it: the engine rank will attach again.
  void OnReceiverGone() { attached_ = false; }

  bool running() const { return up() && running_; }
  const VersionAt& claimed() const { return claimed_; }
  // A bit that flips without anybody writing.
  void Drift();
  // Whether what it holds is what was published, but for drift nobody can have seen.
  bool Equals(const std::vector<std::optional<RankWeights>>& version) const;

 protected:
  void OnStart() override;
  void OnCrash() override;

 private:
  void TryAttach();

  const uint32_t part_;
  const uint32_t parts_;
  Receiver* receiver_ = nullptr;
  std::vector<RankWeights> memory_;
  std::vector<std::array<std::array<bool, kWords>, kSlices>> drifted_;
  bool attached_ = false;
  uint64_t attachment_ = 0;
  bool running_ = false;
  VersionAt claimed_;
};

}  // namespace dws::sim
