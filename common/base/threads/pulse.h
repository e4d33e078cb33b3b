// Signs of life of the threads that a daemon needs, for a watchdog. A thread that works and makes
// no progress is stuck. Long work with progress is not, and neither is waiting for another process.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"

namespace dws {

// The signs of life of one thread, or of several threads that share a piece of work. Threads: safe
// from any; no call takes a lock.
class Pulse {
 public:
  void BeginWork() { Change(busy_, 1); }
  void EndWork() { Change(busy_, -1); }
  // Call BeginWait if another process must answer and the answer has a deadline.
  void BeginWait() { Change(waiting_, 1); }
  void EndWait() { Change(waiting_, -1); }
  // Something was completed: an item, a chunk, a try.
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

// Marks a scope as work. The pulse may be null: then nothing is watched.
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

// Marks a scope as a wait. The pulse may be null: then nothing is watched.
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

// Work that is watched under one name. It is stuck if `work` is working and neither it nor any of
// `helpers` beats.
struct WatchedWork {
  std::string name;  // "the commit worker"
  const Pulse* work = nullptr;
  std::vector<const Pulse*> helpers;  // pulses of the threads that help with this work
};

// Finds work that is stuck. The pulses must outlive it. Threads: one at a time.
class PulseWatch {
 public:
  PulseWatch(std::vector<WatchedWork> works, Duration stall_max)
      : stall_max_(stall_max), entries_(works.begin(), works.end()) {}

  // Call it every few seconds. If some work has been stuck for longer than `stall_max`, returns its
  // name. A gap between two calls counts as kGapMax at most: a longer one means that this process
  // did not run, not that its threads made no progress.
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
