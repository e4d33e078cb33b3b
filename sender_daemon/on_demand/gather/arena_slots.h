// Decides which slot of the arena has which unit: who fills one, who waits, what is evicted. Pure:
// no memory, no clock, no threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "sender_daemon/on_demand/gather/unit_at.h"

namespace dws {

// Lifecycle: one for each arena. Threads: one at a time.
class ArenaSlots {
 public:
  enum class State : uint8_t { kFree, kFilling, kReady, kInUse };

  // What a caller that wants a unit is to do.
  enum class Answer : uint8_t {
    kUse,   // the slot has it, and is in use now
    kFill,  // fill the slot, then call Filled
    kWait,  // until something changes: somebody fills it, or no slot is available
  };
  struct Granted {
    Answer answer = Answer::kWait;
    size_t slot = 0;  // of kUse and kFill
  };

  explicit ArenaSlots(size_t slots) : slots_(slots) {}

  // For the rank. If all slots have units, it evicts one that is ready: rather one of another
  // version, then one that was used, then the one that has not changed for longest. A unit may be
  // in use several times at once.
  Granted Want(const UnitAt& unit);
  // For a prefetch. As Want, but it never evicts a unit of the same version that was not used yet,
  // and never answers kUse: kWait also says that the unit is there, or is being filled.
  Granted Prefetch(const UnitAt& unit);
  // The filling of a slot has ended. `good`: its bytes are those of the unit; else it is free.
  // `use`: its filler uses it at once.
  void Filled(size_t slot, bool good, bool use);
  // One use of a slot has ended. Its bytes stay until they are evicted (CHECK: it is in use).
  void Release(size_t slot);

  State state(size_t slot) const { return slots_[slot].state; }
  size_t size() const { return slots_.size(); }

 private:
  struct Slot {
    State state = State::kFree;
    std::optional<UnitAt> unit;
    size_t uses = 0;  // now
    bool used = false;
    uint64_t since = 0;  // its last change, in changes of all slots
  };
  Slot* Find(const UnitAt& unit);
  // The slot to fill with the unit; null: none.
  Slot* Room(const UnitAt& unit, bool unused_too);
  Granted Fill(Slot* slot, const UnitAt& unit);

  std::vector<Slot> slots_;
  uint64_t changes_ = 0;
};

}  // namespace dws
