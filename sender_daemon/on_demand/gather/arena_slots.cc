// Slots are few (2 and what is prefetched), so each question looks at all of them.
#include "sender_daemon/on_demand/gather/arena_slots.h"

#include <algorithm>
#include <tuple>

#include "common/base/check.h"

namespace dws {

ArenaSlots::Slot* ArenaSlots::Find(const UnitAt& unit) {
  const auto found =
      std::ranges::find_if(slots_, [&](const Slot& slot) { return slot.unit == unit; });
  return found == slots_.end() ? nullptr : &*found;
}

ArenaSlots::Slot* ArenaSlots::Room(const UnitAt& unit, bool unused_too) {
  Slot* best = nullptr;
  const auto rank = [&](const Slot& slot) {  // the lower, the sooner it goes
    const bool current = slot.unit->at == unit.at;
    return std::tuple(current, !slot.used, slot.since);
  };
  for (Slot& slot : slots_) {
    if (slot.state == State::kFree) return &slot;
    if (slot.state != State::kReady) continue;
    if (!unused_too && slot.unit->at == unit.at && !slot.used) continue;
    if (best == nullptr || rank(slot) < rank(*best)) best = &slot;
  }
  return best;
}

ArenaSlots::Granted ArenaSlots::Fill(Slot* slot, const UnitAt& unit) {
  if (slot == nullptr) return {};
  *slot = {.state = State::kFilling, .unit = unit, .since = ++changes_};
  return {.answer = Answer::kFill, .slot = static_cast<size_t>(slot - slots_.data())};
}

ArenaSlots::Granted ArenaSlots::Want(const UnitAt& unit) {
  Slot* const slot = Find(unit);
  if (slot == nullptr) return Fill(Room(unit, true), unit);
  if (slot->state == State::kFilling) return {};
  slot->state = State::kInUse;
  ++slot->uses;
  slot->used = true;
  return {.answer = Answer::kUse, .slot = static_cast<size_t>(slot - slots_.data())};
}

ArenaSlots::Granted ArenaSlots::Prefetch(const UnitAt& unit) {
  return Find(unit) != nullptr ? Granted() : Fill(Room(unit, false), unit);
}

void ArenaSlots::Filled(size_t slot, bool good, bool use) {
  Slot& filled = slots_[slot];
  DWS_CHECK(filled.state == State::kFilling);
  if (!good) {
    filled = Slot();
    return;
  }
  filled.state = use ? State::kInUse : State::kReady;
  filled.uses = use ? 1 : 0;
  filled.used = use;
  filled.since = ++changes_;
}

void ArenaSlots::Release(size_t slot) {
  Slot& used = slots_[slot];
  DWS_CHECK(used.state == State::kInUse && used.uses > 0);
  if (--used.uses > 0) return;
  used.state = State::kReady;
  used.since = ++changes_;
}

}  // namespace dws
