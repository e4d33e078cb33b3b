// A simulated engine rank: shared memory that outlives its receiver, and an execution lease.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/memory/host/host_region.h"
#include "common/sync_state/live_state.h"
#include "receiver_daemon/weights/engine_mapping.h"
#include "tests/simulation/nodes/node.h"
#include "tests/simulation/weights.h"

namespace dws::sim {

class Receiver;

class Engine final : public Node {
 public:
  // Holds the slices whose number modulo `parts` is `part`.
  Engine(World& world, uint32_t site, std::string name, uint32_t part, uint32_t parts);

  void Serve(Receiver& receiver) { receiver_ = &receiver; }
  const Receiver& receiver() const { return *receiver_; }
  bool has_hook() const { return has_hook_; }

  // The views that it hands over when it attaches.
  std::vector<EngineView> Views() const;
  uint64_t memory_bytes() const;
  UniqueFd MemoryDescriptor() const;

  // The other end of the lease of `attachment`.
  uint64_t attachment() const { return attachment_; }
  // Calls `done` when it has stopped, or has crashed.
  void Pause(uint64_t attachment, std::function<void(const Status&)> done);
  // The error of its hook for the new weights; "" if the derived tensors were rebuilt.
  std::string PostCommit();
  void Resume(uint64_t attachment, const VersionAt& version);
  // The receiver ended the lease: the engine rank will attach again.
  void OnReceiverGone() { attached_ = false; }
  // The receiver has read all memory: all drift is detected.
  void OnRead() { drifted_.clear(); }

  bool running() const { return up() && running_; }
  const VersionAt& claimed() const { return claimed_; }
  // Flips a bit without a write.
  void Drift();
  // Returns whether its memory holds the published version, except for drift that nothing can have
  // found.
  bool Equals(const std::vector<std::optional<RankWeights>>& version) const;

 protected:
  void OnStart() override;
  void OnCrash() override;

 private:
  bool Holds(uint32_t rank, uint32_t slice) const {
    return (rank * kSlices + slice) % parts_ == part_;
  }
  std::span<uint64_t> Words() const;
  // Index of a slice's first word; the memory also has room for slices that other parts hold.
  static size_t WordOf(uint32_t rank, uint32_t slice) {
    return (size_t{rank} * kSlices + slice) * kWords;
  }
  void TryAttach();

  const uint32_t part_;
  const uint32_t parts_;
  bool has_hook_ = false;
  Receiver* receiver_ = nullptr;
  CreatedRegion memory_;
  // Drift excuses a word as long as the word has this value.
  struct Drifted {
    size_t word = 0;
    uint64_t value = 0;
  };
  std::vector<Drifted> drifted_;
  bool attached_ = false;
  uint64_t attachment_ = 0;
  bool running_ = false;
  uint64_t resumes_ = 0;
  VersionAt claimed_;
};

}  // namespace dws::sim
