#include "sender_daemon/on_demand/gather/arena_slots.h"

#include <catch2/catch.hpp>
#include <map>
#include <random>

namespace dws {
namespace {

using Answer = ArenaSlots::Answer;
using State = ArenaSlots::State;

UnitAt Unit(uint32_t unit, uint64_t version = 1) {
  return {.unit = UnitIndex(unit),
          .at = {.stream = {.incarnation = 1}, .version = WeightVersion(version)}};
}

}  // namespace

TEST_CASE("a unit that is there is used without another filling", "[arena]") {
  ArenaSlots slots(2);
  const auto first = slots.Want(Unit(7));
  CHECK(first.answer == Answer::kFill);
  CHECK(slots.state(first.slot) == State::kFilling);
  CHECK(slots.Want(Unit(7)).answer == Answer::kWait);  // somebody fills it
  slots.Filled(first.slot, true, true);
  const auto second = slots.Want(Unit(7));
  CHECK(second.answer == Answer::kUse);
  CHECK(second.slot == first.slot);
  slots.Release(first.slot);
  CHECK(slots.state(first.slot) == State::kInUse);  // the second use
  slots.Release(first.slot);
  CHECK(slots.state(first.slot) == State::kReady);
  CHECK(slots.Want(Unit(7, 2)).slot != first.slot);  // another version is another unit
}

TEST_CASE("a slot that could not be filled is free again", "[arena]") {
  ArenaSlots slots(1);
  const auto granted = slots.Want(Unit(1));
  slots.Filled(granted.slot, false, true);
  CHECK(slots.state(granted.slot) == State::kFree);
  CHECK(slots.Want(Unit(1)).answer == Answer::kFill);
}

TEST_CASE("nothing that is filled or in use is evicted", "[arena]") {
  ArenaSlots slots(2);
  slots.Filled(slots.Want(Unit(1)).slot, true, true);
  CHECK(slots.Want(Unit(2)).answer == Answer::kFill);
  CHECK(slots.Want(Unit(3)).answer == Answer::kWait);
  CHECK(slots.Prefetch(Unit(3)).answer == Answer::kWait);
}

TEST_CASE("an older version goes first, then what was used, the oldest first", "[arena]") {
  ArenaSlots slots(3);
  const auto fill = [&](const UnitAt& unit, bool use) {
    const auto granted = slots.Want(unit);
    REQUIRE(granted.answer == Answer::kFill);
    slots.Filled(granted.slot, true, use);
    if (use) slots.Release(granted.slot);
    return granted.slot;
  };
  const size_t used = fill(Unit(1, 2), true);
  const size_t old = fill(Unit(1, 1), true);
  const size_t unused = fill(Unit(2, 2), false);
  CHECK(fill(Unit(3, 2), true) == old);
  CHECK(fill(Unit(4, 2), true) == used);
  // A prefetch leaves alone what waits to be used; the rank does not.
  const auto ahead = slots.Prefetch(Unit(5, 2));
  CHECK(ahead.slot == old);
  slots.Filled(ahead.slot, true, false);
  const auto again = slots.Prefetch(Unit(6, 2));
  CHECK(again.slot == used);
  slots.Filled(again.slot, true, false);
  CHECK(slots.Prefetch(Unit(7, 2)).answer == Answer::kWait);
  CHECK(slots.Want(Unit(7, 2)).slot == unused);
}

TEST_CASE("a prefetch of what is there does nothing", "[arena]") {
  ArenaSlots slots(2);
  const auto granted = slots.Prefetch(Unit(1));
  CHECK(granted.answer == Answer::kFill);
  CHECK(slots.Prefetch(Unit(1)).answer == Answer::kWait);
  slots.Filled(granted.slot, true, false);
  CHECK(slots.Prefetch(Unit(1)).answer == Answer::kWait);
  CHECK(slots.Want(Unit(1)).answer == Answer::kUse);
}

TEST_CASE("whatever is asked for in which order, a use has the bytes that were filled in",
          "[arena]") {
  const auto seed = GENERATE(take(50, random(0U, ~0U)));
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  ArenaSlots slots(1 + random() % 5);
  std::map<size_t, UnitAt> bytes;  // what a slot was filled with last
  std::map<size_t, size_t> uses;
  std::map<size_t, UnitAt> filling;
  for (int step = 0; step < 300; ++step) {
    const UnitAt unit = Unit(static_cast<uint32_t>(random() % 6), 1 + random() % 2);
    const bool ahead = random() % 2 == 0;
    const auto granted = ahead ? slots.Prefetch(unit) : slots.Want(unit);
    if (granted.answer == Answer::kUse) {
      REQUIRE(!ahead);
      REQUIRE(bytes.at(granted.slot) == unit);
      ++uses[granted.slot];
    } else if (granted.answer == Answer::kFill) {
      REQUIRE(uses[granted.slot] == 0);
      REQUIRE(!filling.contains(granted.slot));
      filling.emplace(granted.slot, unit);
      bytes.erase(granted.slot);
    }
    if (!filling.empty() && random() % 2 == 0) {
      const auto [slot, filled] = *filling.begin();
      const bool good = random() % 4 != 0;
      const bool use = random() % 2 == 0;
      slots.Filled(slot, good, use);
      filling.erase(slot);
      if (good) bytes.emplace(slot, filled);
      if (good && use) ++uses[slot];
    }
    for (auto& [slot, count] : uses) {
      if (count == 0 || random() % 3 != 0) continue;
      slots.Release(slot);
      --count;
    }
  }
}

}  // namespace dws
