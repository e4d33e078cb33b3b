// How much memory all staged writes may take together: one cap for all workers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "common/memory/own_pages.h"

namespace dws {

// Lifecycle: must outlive the filling of all StagedWrites that use it. Threads: safe from any.
class StagingBudget {
 public:
  // `spare`: where staged writes take pages from; null: from the system.
  explicit StagingBudget(uint64_t bytes_max, std::shared_ptr<SparePages> spare = nullptr)
      : bytes_max_(bytes_max), spare_(std::move(spare)) {}

  OwnPages Pages(size_t size) const {
    return spare_ == nullptr ? AllocateOwnPages(size) : spare_->Allocate(size);
  }
  // Before memory is allocated that is not of Pages.
  void MakeRoom(size_t size) const {
    if (spare_ != nullptr) spare_->MakeRoom(size);
  }

  // Returns whether `bytes` more may be allocated. If so, they are counted and never returned.
  bool Take(uint64_t bytes) {
    uint64_t taken = bytes_.load(std::memory_order_relaxed);
    do {
      if (bytes > bytes_max_ - taken) return false;
    } while (!bytes_.compare_exchange_weak(taken, taken + bytes, std::memory_order_relaxed));
    return true;
  }

  // Marks the budget as exceeded: something was not staged, and the rest alone is of no use.
  void Pass() { passed_.store(true, std::memory_order_relaxed); }
  bool passed() const { return passed_.load(std::memory_order_relaxed); }

  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  const uint64_t bytes_max_;
  const std::shared_ptr<SparePages> spare_;
  std::atomic<uint64_t> bytes_{0};
  std::atomic<bool> passed_{false};
};

}  // namespace dws
