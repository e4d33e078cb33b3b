// How much memory staged writes may take together, whoever stages them: one cap over all workers.
#pragma once

#include <atomic>
#include <cstdint>

namespace dws {

// Lifecycle: outlives all StagedWrites that take from it while they are filled. Threads: safe from
// any.
class StagingBudget {
 public:
  explicit StagingBudget(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  // Whether `bytes` more may be allocated. They are counted then, and never given back.
  bool Take(uint64_t bytes) {
    uint64_t taken = bytes_.load(std::memory_order_relaxed);
    do {
      if (bytes > bytes_max_ - taken) return false;
    } while (!bytes_.compare_exchange_weak(taken, taken + bytes, std::memory_order_relaxed));
    return true;
  }

  // Something was not staged for lack of memory: what was is of no use alone.
  void Pass() { passed_.store(true, std::memory_order_relaxed); }
  bool passed() const { return passed_.load(std::memory_order_relaxed); }

  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  const uint64_t bytes_max_;
  std::atomic<uint64_t> bytes_{0};
  std::atomic<bool> passed_{false};
};

}  // namespace dws
