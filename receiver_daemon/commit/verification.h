// One reading of all live memory, a bounded batch of slices at a time, so that commits can happen
// in between: each slice is compared with the version that memory has when the slice is read.
// Verification, resync and scrub use it; it decides nothing and writes nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/threads/thread_pool.h"
#include "common/model/digest/digest.h"
#include "receiver_daemon/weights/engine_weights.h"

namespace dws {

// Some slices of one trainer rank that the engine holds.
struct SliceBatch {
  TrainerRank rank;
  std::vector<RankSlice> slices;  // ascending, not empty
  uint64_t bytes = 0;             // of every copy
};

// Lifecycle: for one engine (`weights`). Threads: one.
class Verification {
 public:
  explicit Verification(EngineWeightsPtr weights);

  const EngineWeights& weights() const { return *weights_; }
  bool done() const { return rank_ == weights_->layouts().world_size(); }
  // Returns the next slices, and moves on: at least one slice, and no more than one slice if that
  // is above `bytes_max`. Requires !done().
  SliceBatch Next(uint64_t bytes_max);

  uint64_t done_bytes() const { return done_bytes_; }
  uint64_t total_bytes() const { return total_bytes_; }

 private:
  uint64_t HeldBytes(TrainerRank rank, RankSlice slice) const;
  void SkipToHeld();  // to the next slice that is held, or done

  EngineWeightsPtr weights_;
  uint32_t rank_ = 0;
  uint32_t slice_ = 0;
  uint64_t done_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

}  // namespace dws
