// A slot is written only between the grant to fill it and Filled, without the lock: nobody else
// uses it meanwhile.
#include "sender_daemon/on_demand/gather/unit_arena.h"

#include <algorithm>
#include <utility>

#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "sender_daemon/on_demand/gather/limits.h"

namespace dws {

UnitArena::Lease::~Lease() {
  if (arena_ != nullptr) arena_->Release(slot_);
}

ByteSpan UnitArena::Lease::bytes() const {
  return arena_->memory_.bytes().subspan(offset(), size_);
}

Result<std::unique_ptr<UnitArena>> UnitArena::Create(HostRegion&& memory, size_t prefetch,
                                                     Gather& gather, const Clock& clock,
                                                     const StreamId& stream,
                                                     const Gather::Wanted& wanted) {
  if (prefetch > limits::kPrefetchMax) {
    return InvalidArgumentError("{} units are to be prefetched, at most {} are supported", prefetch,
                                limits::kPrefetchMax);
  }
  DWS_ASSIGN_OR_RETURN(std::vector<uint64_t> unit_bytes, gather.UnitBytes(stream, wanted));
  const auto largest = std::max_element(unit_bytes.begin(), unit_bytes.end());
  const uint64_t slot_bytes = std::max(*largest, limits::kUnitAlignment);
  if (memory.size_bytes() < slot_bytes) {
    const UnitIndex unit(static_cast<uint32_t>(largest - unit_bytes.begin()));
    return InvalidArgumentError(
        "the arena has {} bytes, and {} alone needs {}: {} are enough for it and what is "
        "prefetched",
        memory.size_bytes(), gather.NameOf(unit), slot_bytes, slot_bytes * (2 + prefetch));
  }
  return std::unique_ptr<UnitArena>(
      new UnitArena(std::move(memory), prefetch, gather, clock, std::move(unit_bytes), slot_bytes));
}

UnitArena::UnitArena(HostRegion memory, size_t prefetch, Gather& gather, const Clock& clock,
                     std::vector<uint64_t> unit_bytes, uint64_t slot_bytes)
    : memory_(std::move(memory)),
      prefetch_(prefetch),
      gather_(gather),
      clock_(clock),
      unit_bytes_(std::move(unit_bytes)),
      slot_bytes_(slot_bytes),
      slots_(std::min<uint64_t>(2 + prefetch, memory_.size_bytes() / slot_bytes_)),
      prefetches_(std::clamp<size_t>(prefetch, 1, limits::kPrefetchThreads), limits::kPrefetchMax) {
}

UnitArena::~UnitArena() { Stop(); }

void UnitArena::Stop() {
  stopped_.Cancel();
  prefetches_.Stop();
}

size_t UnitArena::slots() const {
  MutexLock lock(mutex_);
  return slots_.size();
}

void UnitArena::BeginMicrobatch() {
  MutexLock lock(mutex_);
  order_.Begin();
}

Status UnitArena::Fill(const UnitAt& unit, size_t slot, const Gather::Wanted& wanted, bool use) {
  const MutableByteSpan to =
      memory_.mutable_bytes().subspan(slot * slot_bytes_, unit_bytes_[unit.unit.value()]);
  Status filled = gather_.Run(unit, to, wanted);
  MutexLock lock(mutex_);
  slots_.Filled(slot, filled.ok(), use);
  changed_.NotifyAll();
  return filled;
}

Result<UnitArena::Lease> UnitArena::Take(const UnitAt& unit, const Gather::Wanted& wanted) {
  if (unit.unit.value() >= unit_bytes_.size()) {
    return InvalidArgumentError("unit {} of {}", unit.unit.value(), unit_bytes_.size());
  }
  ArenaSlots::Granted granted;
  {
    MutexLock lock(mutex_);
    for (granted = slots_.Want(unit); granted.answer == ArenaSlots::Answer::kWait;
         granted = slots_.Want(unit)) {
      if (stopped_.cancelled() ||
          (wanted.cancellation != nullptr && wanted.cancellation->cancelled())) {
        return CancelledError("{}: given up", gather_.NameOf(unit.unit));
      }
      if (clock_.Now() >= wanted.deadline) {
        return DeadlineExceededError(
            "{}: it is still being fetched ahead, or all {} slots of the arena are in use",
            gather_.NameOf(unit.unit), slots_.size());
      }
      // A cancellation does not wake this.
      changed_.WaitFor(mutex_, std::min<Duration>(limits::kTick, wanted.deadline - clock_.Now()));
    }
  }
  if (granted.answer == ArenaSlots::Answer::kFill) {
    DWS_RETURN_IF_ERROR(Fill(unit, granted.slot, wanted, true));
  }
  Lease lease(this, granted.slot, unit_bytes_[unit.unit.value()]);
  PrefetchAfter(unit, wanted.deadline);
  return lease;
}

void UnitArena::PrefetchAfter(const UnitAt& unit, TimePoint deadline) {
  MutexLock lock(mutex_);
  for (const UnitIndex next : order_.Next(unit.unit, prefetch_)) {
    const UnitAt ahead{.unit = next, .at = unit.at};
    const ArenaSlots::Granted granted = slots_.Prefetch(ahead);
    if (granted.answer != ArenaSlots::Answer::kFill) continue;
    const bool posted = prefetches_.Post([this, ahead, slot = granted.slot, deadline] {
      const Status filled =
          Fill(ahead, slot, {.deadline = deadline, .cancellation = &stopped_}, false);
      // The rank gathers the unit when it asks for it, and gets the error.
      if (!filled.ok()) LogDebug("prefetch_failed", {{"reason", Message(filled)}});
    });
    if (!posted) slots_.Filled(granted.slot, false, false);
  }
}

void UnitArena::Release(size_t slot) {
  MutexLock lock(mutex_);
  slots_.Release(slot);
  changed_.NotifyAll();
}

}  // namespace dws
