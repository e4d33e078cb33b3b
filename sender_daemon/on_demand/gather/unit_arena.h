// The memory in which a rank finds the units that it asks for: the rank's own, of a few slots, each
// as large as the largest unit.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/cancellation.h"
#include "common/base/threads/executor.h"
#include "common/base/threads/mutex.h"
#include "common/memory/host/host_region.h"
#include "sender_daemon/on_demand/gather/arena_slots.h"
#include "sender_daemon/on_demand/gather/gather.h"
#include "sender_daemon/on_demand/gather/prefetch_order.h"

namespace dws {

// Lifecycle: Stop, or the destructor, waits for prefetches; leases must have ended. Threads: safe
// from any.
class UnitArena {
 public:
  // The use of a unit's bytes. Lifecycle: the destructor ends the use; the arena outlives it.
  class Lease {
   public:
    Lease(Lease&& other) noexcept
        : arena_(std::exchange(other.arena_, nullptr)), slot_(other.slot_), size_(other.size_) {}
    Lease& operator=(Lease&&) = delete;
    ~Lease();
    // The unit, which lies there like its plan says.
    ByteSpan bytes() const;
    // The place of bytes() in the shared memory, in bytes.
    uint64_t offset() const { return slot_ * arena_->slot_bytes_; }

   private:
    friend class UnitArena;
    Lease(UnitArena* arena, size_t slot, uint64_t size) : arena_(arena), slot_(slot), size_(size) {}

    UnitArena* arena_;
    size_t slot_ = 0;
    uint64_t size_ = 0;
  };

  // Divides `memory`, which may be written, into at most 2 + `prefetch` slots of the largest unit's
  // bytes, and takes it; after an error it is still the caller's. INVALID_ARGUMENT: it has no room
  // for one slot, which the message names with the bytes it needs, or `prefetch` is above
  // limits::kPrefetchMax. Others: those of Gather::UnitBytes. `gather` and `clock` outlive it.
  static Result<std::unique_ptr<UnitArena>> Create(HostRegion&& memory, size_t prefetch,
                                                   Gather& gather, const Clock& clock,
                                                   const StreamId& stream,
                                                   const Gather::Wanted& wanted);
  ~UnitArena();

  // The rank begins a microbatch (PrefetchOrder).
  void BeginMicrobatch();
  // Brings a unit, or finds it, and begins to fetch those that come next. Waits while no slot
  // is available. Errors: those of Gather::Run; DEADLINE_EXCEEDED also says that all slots are in
  // use.
  Result<Lease> Take(const UnitAt& unit, const Gather::Wanted& wanted);
  // Ends prefetches, and refuses new ones.
  void Stop();

  size_t slots() const;

 private:
  UnitArena(HostRegion memory, size_t prefetch, Gather& gather, const Clock& clock,
            std::vector<uint64_t> unit_bytes, uint64_t slot_bytes);
  // Gathers into a slot that was granted to be filled.
  Status Fill(const UnitAt& unit, size_t slot, const Gather::Wanted& wanted, bool use);
  void PrefetchAfter(const UnitAt& unit, TimePoint deadline);
  void Release(size_t slot);

  const HostRegion memory_;
  const size_t prefetch_;
  Gather& gather_;
  const Clock& clock_;
  const std::vector<uint64_t> unit_bytes_;
  const uint64_t slot_bytes_;
  Cancellation stopped_;
  mutable Mutex mutex_;
  CondVar changed_;
  ArenaSlots slots_ GUARDED_BY(mutex_);
  PrefetchOrder order_ GUARDED_BY(mutex_);
  Executor prefetches_;
};

}  // namespace dws
