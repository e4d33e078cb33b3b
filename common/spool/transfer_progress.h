// How many bytes of one step's transfers have arrived, over all trainer ranks.
#pragma once

#include <atomic>
#include <cstdint>

namespace dws {

// Threads: safe from any. `total_bytes` grows as transfers begin; 0: not known.
struct TransferProgress {
  std::atomic<uint64_t> done_bytes{0};
  std::atomic<uint64_t> total_bytes{0};
  std::atomic<uint64_t> direct_bytes{0};  // written to live memory, some perhaps again

  void Reset() {
    done_bytes.store(0);
    total_bytes.store(0);
    direct_bytes.store(0);
  }
};

// The bytes that one attempt adds to a TransferProgress. The destructor subtracts them again,
// because the next attempt adds the same bytes; after Keep nothing is subtracted. Lifecycle: that
// of the attempt; the TransferProgress must outlive it. Threads: one.
class AttemptProgress {
 public:
  // If `of` is null, nothing is counted.
  explicit AttemptProgress(TransferProgress* of) : of_(of) {}
  ~AttemptProgress() {
    if (of_ == nullptr) return;
    of_->done_bytes -= done_bytes_;
    of_->total_bytes -= total_bytes_;
  }
  AttemptProgress(const AttemptProgress&) = delete;
  AttemptProgress& operator=(const AttemptProgress&) = delete;

  void Expect(uint64_t bytes) {
    total_bytes_ += bytes;
    if (of_ != nullptr) of_->total_bytes += bytes;
  }
  void Arrived(uint64_t bytes) {
    done_bytes_ += bytes;
    if (of_ != nullptr) of_->done_bytes += bytes;
  }
  void Keep() { of_ = nullptr; }

 private:
  TransferProgress* of_;
  uint64_t done_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

}  // namespace dws
