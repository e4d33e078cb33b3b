// Memory of this host in which a rank finds the units that it asks for: shared memory that the rank
// maps, of a few slots, each as large as the largest unit.
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
#include "sender_daemon/on_demand/arena_slots.h"
#include "sender_daemon/on_demand/gather.h"
#include "sender_daemon/on_demand/prefetch_order.h"

namespace dws {

// Lifecycle: Stop, or the destructor, waits for prefetches; leases must have ended. Threads: safe
// from any.
class UnitArena {
 public:
  struct Options {
    size_t prefetch = 1;     // units that are fetched ahead, at most limits::kPrefetchMax
    uint64_t bytes_max = 0;  // for all slots; 0: as many as it needs
  };

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

  // Makes an arena of (2 + prefetch) times the largest unit's bytes, or of as many slots as
  // `bytes_max` has room for. INVALID_ARGUMENT: it has not room for one, which the message names
  // with the bytes it needs, or `prefetch` is too large. Others: those of Gather::UnitBytes and
  // CreateHostRegion. `gather` and `clock` outlive it.
  static Result<std::unique_ptr<UnitArena>> Create(Options options, Gather& gather,
                                                   const Clock& clock, const StreamId& stream,
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

  // To map it with. The rank must not write there.
  Result<UniqueFd> ReadOnlyDescriptor() const { return ReopenReadOnly(memory_.fd); }
  uint64_t size_bytes() const { return memory_.region.size_bytes(); }
  size_t slots() const;

 private:
  UnitArena(Options options, Gather& gather, const Clock& clock, std::vector<uint64_t> unit_bytes,
            uint64_t slot_bytes, CreatedRegion memory);
  // Gathers into a slot that was granted to be filled.
  Status Fill(const UnitAt& unit, size_t slot, const Gather::Wanted& wanted, bool use);
  void PrefetchAfter(const UnitAt& unit, TimePoint deadline);
  void Release(size_t slot);

  const Options options_;
  Gather& gather_;
  const Clock& clock_;
  const std::vector<uint64_t> unit_bytes_;
  const uint64_t slot_bytes_;
  CreatedRegion memory_;
  Cancellation stopped_;
  mutable Mutex mutex_;
  CondVar changed_;
  ArenaSlots slots_ GUARDED_BY(mutex_);
  PrefetchOrder order_ GUARDED_BY(mutex_);
  Executor prefetches_;
};

}  // namespace dws
