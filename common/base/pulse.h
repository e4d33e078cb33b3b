// Signs of life of threads that a daemon cannot do without, for a watchdog: who works and makes no
// progress is stuck. Long work is no reason to be killed, nor is waiting for somebody else.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"

namespace dws {

// Of one thread, or of several that do one work. Threads: safe from any; no call takes a lock.
class Pulse {
 public:
  void BeginWork() { Change(busy_, 1); }
  void EndWork() { Change(busy_, -1); }
  // Somebody else is to answer, and there is a deadline for it.
  void BeginWait() { Change(waiting_, 1); }
  void EndWait() { Change(waiting_, -1); }
  // Something got done: an item, a chunk, a try.
  void Beat() { beats_.fetch_add(1, std::memory_order_relaxed); }

  bool working() const { return busy_.load() > 0 && waiting_.load() == 0; }
  uint64_t beats() const { return beats_.load(std::memory_order_relaxed); }

 private:
  void Change(std::atomic<int>& count, int by) {
    count.fetch_add(by);
    Beat();
  }

  std::atomic<uint64_t> beats_{0};
  std::atomic<int> busy_{0};
  std::atomic<int> waiting_{0};
};

// Null pulses are allowed: then nobody watches.
class PulseWork {
 public:
  explicit PulseWork(Pulse* pulse) : pulse_(pulse) {
    if (pulse_ != nullptr) pulse_->BeginWork();
  }
  ~PulseWork() {
    if (pulse_ != nullptr) pulse_->EndWork();
  }
  PulseWork(const PulseWork&) = delete;
  PulseWork& operator=(const PulseWork&) = delete;

 private:
  Pulse* const pulse_;
};

class PulseWait {
 public:
  explicit PulseWait(Pulse* pulse) : pulse_(pulse) {
    if (pulse_ != nullptr) pulse_->BeginWait();
  }
  ~PulseWait() {
    if (pulse_ != nullptr) pulse_->EndWait();
  }
  PulseWait(const PulseWait&) = delete;
  PulseWait& operator=(const PulseWait&) = delete;

 private:
  Pulse* const pulse_;
};

// What is watched under one name: stuck when `work` works and neither it nor `helpers` beat.
struct WatchedWork {
  std::string name;  // "the commit worker"
  const Pulse* work = nullptr;
  std::vector<const Pulse*> helpers;  // of threads that work for it
};

// Threads: one at a time; the pulses outlive it.
class PulseWatch {
 public:
  PulseWatch(std::vector<WatchedWork> works, Duration stall_max)
      : stall_max_(stall_max), entries_(works.begin(), works.end()) {}

  // Call it every few seconds. The name of a work that has been stuck for longer than `stall_max`.
  // A gap between two calls counts as kGapMax at most: it says that this process did not run, not
  // that the others did not progress.
  std::optional<std::string> Stuck(TimePoint now);

  static constexpr Duration kGapMax = std::chrono::seconds(5);

 private:
  struct Entry {
    explicit Entry(WatchedWork watched) : work(std::move(watched)) {}
    WatchedWork work;
    uint64_t beats = 0;
    Duration still = Duration::zero();
  };

  const Duration stall_max_;
  std::vector<Entry> entries_;
  std::optional<TimePoint> last_;
};

}  // namespace dws
