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
class Liveness {
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

// Marks a scope as work. The pointer may be null: then nothing is watched.
class WorkScope {
 public:
  explicit WorkScope(Liveness* liveness) : liveness_(liveness) {
    if (liveness_ != nullptr) liveness_->BeginWork();
  }
  ~WorkScope() {
    if (liveness_ != nullptr) liveness_->EndWork();
  }
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;

 private:
  Liveness* const liveness_;
};

// Marks a scope as a wait. The pointer may be null: then nothing is watched.
class WaitScope {
 public:
  explicit WaitScope(Liveness* liveness) : liveness_(liveness) {
    if (liveness_ != nullptr) liveness_->BeginWait();
  }
  ~WaitScope() {
    if (liveness_ != nullptr) liveness_->EndWait();
  }
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;

 private:
  Liveness* const liveness_;
};

// Work that is watched under one name. It is stuck if `work` is working and neither it nor any of
// `helpers` beats.
struct WatchedWork {
  std::string name;  // "the commit worker"
  const Liveness* work = nullptr;
  std::vector<const Liveness*> helpers;  // of the threads that help with this work
};

// Finds work that is stuck. What it watches must outlive it. Threads: one at a time.
class LivenessWatch {
 public:
  LivenessWatch(std::vector<WatchedWork> works, Duration stall_max)
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
