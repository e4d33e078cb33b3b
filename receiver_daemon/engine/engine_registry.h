// The engine ranks: who is expected, attached, leased, gone. Registrations are named by their
// generation.
//
//   Reserve  (Attach was checked)  ->  OnDescriptors (memory mapped)  ->  lease opened  ->  End
//   (hang-up, lease broken, layout changed, shutdown)
//
// One registration with its memory has the rank. Those without are in nobody's way: any number may
// exist for a rank, and the first whose memory comes has it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/memory/cuda/cuda_devices.h"
#include "common/memory/region_handle.h"
#include "receiver_daemon/engine/engine_lease.h"
#include "receiver_daemon/peers/change_signal.h"
#include "receiver_daemon/weights/attached_memory.h"
#include "receiver_daemon/weights/layout_set.h"

namespace dws {

// An attach that fits the layout.
struct AttachPlan {
  uint32_t engine_rank = 0;
  uint32_t engine_world_size = 1;
  bool has_hook = false;
  std::string client;
  std::vector<RegionHandle> regions;
  EngineMapping mapping;
  LayoutSetPtr layouts;  // it was checked against
};

// All ranks of an engine, attached and leased.
struct AttachedEngine {
  LayoutSetPtr layouts;
  Generation generation;  // the highest of its ranks
  std::vector<AttachedMemoryPtr> memory;
  std::vector<std::shared_ptr<EngineLease>> leases;
};

// Threads: safe from any.
class EngineRegistry {
 public:
  struct RankState {
    uint32_t engine_rank = 0;
    bool attached = false;  // memory mapped and lease open
    EngineLease::State lease = EngineLease::State::kUnopened;
    Generation generation;
    std::string client;
    std::vector<std::string> memory;  // "host", UUIDs of devices
  };

  // `first_generation`: above those of any earlier process. Without `devices` engines in host
  // memory only.
  EngineRegistry(Generation first_generation, ChangeSignal& changed,
                 Coverage coverage = Coverage::kWhole, cuda::CudaDevices* devices = nullptr)
      : coverage_(coverage),
        devices_(devices),
        next_generation_(first_generation),
        changed_(changed) {}

  Coverage coverage() const { return coverage_; }

  // ALREADY_EXISTS: one that has handed memory over is there (worth waiting for: it may be about to
  // go). INVALID_ARGUMENT: another world size than the other ranks that have, or together they do
  // not cover the layout.
  Result<Generation> Reserve(AttachPlan plan);
  // How to close the registration's connection; called once, when it ends from this side.
  void SetDisconnect(Generation generation, std::function<void()> disconnect);
  // Maps the regions; whoever uses them keeps `connection` open. NOT_FOUND: the registration has
  // ended. Errors of Reserve (others may have come meanwhile) and of ImportRegions.
  Status OnDescriptors(Generation generation, std::vector<UniqueFd> descriptors,
                       UniqueFd connection);
  // FAILED_PRECONDITION: no such registration (attach again), or memory not handed over yet.
  Result<std::shared_ptr<EngineLease>> FindLease(uint32_t engine_rank, Generation generation) const;
  // Tells that a lease opened or was answered, for whoever waits for a complete engine.
  void OnLeaseOpened() { changed_.Notify(); }

  // Ends a registration: lease, connection; the memory is unmapped when the last user lets go.
  // Unknown: nothing.
  void End(Generation generation, const Status& reason);
  void EndAll(const Status& reason);
  // As EndAll, and ranks that run are told to pause first; who comes to attach from now on is
  // refused with `reason`.
  void EndForGood(const Status& reason);
  // The reason of EndForGood; OK: it has not ended.
  Status ended() const;
  // Ends the registrations that were checked against another layout than `current`, whether or not
  // the engine is complete: its ranks must agree on what a slice is.
  void EndOthersThan(const LayoutSet& current);

  // The engine, when all its ranks are attached and leased, against one layout.
  std::optional<AttachedEngine> Engine() const;
  // Why there is none, in words: "engine rank 1 of 2 is not attached".
  std::string Missing() const;
  std::vector<RankState> Ranks() const;
  // How many the engine has, as its ranks say; 1 while none is here.
  uint32_t expected_ranks() const;

 private:
  struct Registration {
    AttachPlan plan;
    AttachedMemoryPtr memory;  // none until the descriptors came
    std::shared_ptr<EngineLease> lease;
    std::function<void()> disconnect;
  };
  Status CheckOthers(const AttachPlan& plan) const REQUIRES(mutex_);
  Registration* Find(Generation generation) REQUIRES(mutex_);
  // Of all, those without memory included.
  std::vector<Generation> Generations(const std::function<bool(const Registration&)>& wanted) const
      REQUIRES(mutex_);
  static RankState StateOf(const Registration& registration);

  const Coverage coverage_;
  cuda::CudaDevices* const devices_;
  mutable Mutex mutex_;
  Generation next_generation_ GUARDED_BY(mutex_);
  Status ended_ GUARDED_BY(mutex_);                                   // for good
  std::map<uint32_t, Registration> ranks_ GUARDED_BY(mutex_);         // by engine rank, with memory
  std::map<Generation, Registration> unfinished_ GUARDED_BY(mutex_);  // without
  ChangeSignal& changed_;
};

}  // namespace dws
