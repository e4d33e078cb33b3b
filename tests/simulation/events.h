// Simulated time and randomness of one seed: when events happen, and every random choice.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace dws::sim {

using Time = uint64_t;  // microseconds since the start
// Long, because the product's own times are fixed: a reconnect takes up to one round trip.
inline constexpr Time kRoundTrip = 2'000'000;

inline Time Micros(std::chrono::nanoseconds duration) {
  return static_cast<Time>(std::chrono::duration_cast<std::chrono::microseconds>(duration).count());
}

// SplitMix64: the same numbers everywhere, unlike the distributions of <random>.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t x = state_ += 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
  }
  uint64_t Below(uint64_t end) { return Next() % end; }
  // From `least` to `most`, both included.
  uint64_t Between(uint64_t least, uint64_t most) { return least + Below(most - least + 1); }
  bool Chance(uint64_t permille) { return Below(1000) < permille; }
  template <typename T>
  T Pick(std::initializer_list<T> choices) {
    return choices.begin()[Below(choices.size())];
  }

 private:
  uint64_t state_;
};

// Future events by time; events of one time happen in the order in which they were added.
class Events {
 public:
  Time now() const { return now_; }
  uint64_t happened() const { return happened_; }

  void After(Time delay, std::function<void()> action) {
    heap_.push_back({.at = now_ + delay, .number = ++last_number_, .action = std::move(action)});
    std::push_heap(heap_.begin(), heap_.end());
  }
  // False when there is no event until `end`.
  bool RunNext(Time end) {
    if (heap_.empty() || heap_.front().at > end) return false;
    std::pop_heap(heap_.begin(), heap_.end());
    Event event = std::move(heap_.back());
    heap_.pop_back();
    now_ = event.at;
    ++happened_;
    event.action();
    return true;
  }

 private:
  struct Event {
    Time at = 0;
    uint64_t number = 0;
    std::function<void()> action;
    // The heap's top is its largest: the first to happen.
    bool operator<(const Event& other) const {
      return at != other.at ? at > other.at : number > other.number;
    }
  };
  Time now_ = 0;
  uint64_t last_number_ = 0;
  uint64_t happened_ = 0;
  std::vector<Event> heap_;
};

}  // namespace dws::sim
