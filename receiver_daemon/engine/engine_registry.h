// The registrations of engine ranks, each named by its generation. A registration goes through:
//
//   Reserve        the attach was checked
//   OnDescriptors  the memory is mapped
//   OnLeaseChanged the lease is open
//   Follow         the layout has changed: its views are mapped again, or it ends
//   End            hang-up, lease broken, shutdown; possible after any step
//
// A registration owns its rank once its memory is mapped. Before that any number of registrations
// may exist for a rank; the first whose memory arrives gets it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/base/unique_fd.h"
#include "common/memory/cuda/cuda_devices.h"
#include "common/memory/region_handle.h"
#include "common/service/peers/change_signal.h"
#include "receiver_daemon/engine/engine_lease.h"
#include "receiver_daemon/weights/attached_memory.h"
#include "receiver_daemon/weights/layout_set.h"

namespace dws {

// An attach that fits the layout.
struct AttachPlan {
  uint32_t engine_rank = 0;
  uint32_t engine_world_size = 1;
  bool has_hook = false;
  bool commits_on_request = false;
  std::string client;
  std::vector<RegionHandle> regions;
  std::vector<EngineView> views;
  EngineMapping mapping;  // of the views
  LayoutSetPtr layouts;   // that it was checked against
};

// All ranks of an engine, attached and leased.
struct AttachedEngine {
  LayoutSetPtr layouts;
  Generation generation;  // the highest of its ranks
  std::vector<AttachedMemoryPtr> memory;
  std::vector<std::shared_ptr<EngineLease>> leases;
};

// Owns the registrations; the memory and the lease of each are shared with their users. Threads:
// safe from any.
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

  // `first_generation` is above those of any earlier process. Without `devices` only engines in
  // host memory can attach.
  EngineRegistry(Generation first_generation, ChangeSignal& changed,
                 Coverage coverage = Coverage::kWhole, cuda::CudaDevices* devices = nullptr)
      : coverage_(coverage),
        devices_(devices),
        next_generation_(first_generation),
        changed_(changed) {}

  Coverage coverage() const { return coverage_; }

  // ALREADY_EXISTS: another registration owns the rank; it may be about to end, so try again.
  // INVALID_ARGUMENT: the world size is not that of the attached ranks, or together they do not
  // cover the layout. After EndForGood: its reason.
  Result<Generation> Reserve(AttachPlan plan);
  // `disconnect` closes the registration's connection; End calls it, once. Ignored if the
  // registration has ended.
  void SetDisconnect(Generation generation, std::function<void()> disconnect);
  // Maps the regions; `connection` stays open as long as they are used. NOT_FOUND: the registration
  // has ended. Also returns errors of Reserve (another rank may have attached meanwhile) and of
  // ImportRegions.
  Status OnDescriptors(Generation generation, std::vector<UniqueFd> descriptors,
                       UniqueFd connection);
  // FAILED_PRECONDITION: no such registration (attach again), or its memory is not mapped yet.
  Result<std::shared_ptr<EngineLease>> FindLease(uint32_t engine_rank, Generation generation) const;
  // A lease was opened, or asks for a commit: wakes the threads that wait for that.
  void OnLeaseChanged() { changed_.Notify(); }

  // The engine has stopped for good: Missing says why until the rank attaches again. Does nothing
  // if the generation is unknown.
  void OnStopped(Generation generation, std::string reason);

  // Ends a registration, its lease and its connection; the memory is unmapped when its last user
  // releases it. Does nothing if the generation is unknown.
  void End(Generation generation, const Status& reason);
  void EndAll(const Status& reason);
  // Like EndAll, but asks running ranks to pause first, and refuses later attaches with `reason`,
  // which is an error.
  void EndForGood(const Status& reason);
  // The reason of EndForGood; OK: it was not called.
  Status ended() const;
  // Maps again the views of registrations that were checked against a layout other than `current`:
  // all ranks must agree on what a slice is, whether or not the engine is complete. Registrations
  // that `current` cannot serve end, except those that only lack cuts if `senders_cut` says that
  // senders can make them: the result has these cuts.
  CutWishes Follow(const LayoutSetPtr& current, bool senders_cut = true);

  // The engine, if all its ranks are attached and leased, against one layout.
  std::optional<AttachedEngine> Engine() const;
  // Why Engine() is empty, as text: "engine rank 1 of 2 is not attached".
  std::string Missing() const;
  std::vector<RankState> Ranks() const;
  // Returns how many ranks the engine has, as they report it; 1 while no rank is attached.
  uint32_t expected_ranks() const;

 private:
  struct Registration {
    AttachPlan plan;
    AttachedMemoryPtr memory;  // null until the descriptors arrive
    std::shared_ptr<EngineLease> lease;
    std::function<void()> disconnect;
  };
  Status CheckOthers(const AttachPlan& plan) const REQUIRES(mutex_);
  // One registration, for Follow.
  static Status MapAgain(const LayoutSetPtr& current, Registration& registration);
  Registration* Find(Generation generation) REQUIRES(mutex_);
  // Returns the generations of all wanted registrations, including those without memory.
  std::vector<Generation> Generations(const std::function<bool(const Registration&)>& wanted) const
      REQUIRES(mutex_);
  static RankState StateOf(const Registration& registration);

  const Coverage coverage_;
  cuda::CudaDevices* const devices_;
  mutable Mutex mutex_;
  Generation next_generation_ GUARDED_BY(mutex_);
  Status ended_ GUARDED_BY(mutex_);                                   // by EndForGood
  std::map<uint32_t, Registration> ranks_ GUARDED_BY(mutex_);         // by engine rank, with memory
  std::map<Generation, Registration> unfinished_ GUARDED_BY(mutex_);  // without memory
  std::map<uint32_t, std::string> stopped_ GUARDED_BY(mutex_);        // why, by engine rank
  ChangeSignal& changed_;
};

}  // namespace dws
