// The engine's memory for readers beside the worker: other receivers read it while it is exactly
// one version. Before a commit the worker withdraws it, so nobody reads while memory is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/model/block_range.h"
#include "common/model/digest/digest.h"
#include "common/sync_state/live_state.h"
#include "receiver_daemon/weights/engine_weights.h"

namespace dws {

// Threads: Offer and Withdraw from one (the worker's); the others from any.
class ServedWeights {
 public:
  // Memory is exactly `at` until Withdraw. Offering the same again changes nothing: transfers go
  // on.
  void Offer(EngineWeightsPtr weights, const VersionAt& at);
  // Waits for the reads that run: each is of one frame at most. Then the memory is released.
  void Withdraw();

  // An offer that was found. It does not keep the engine's memory.
  struct Found {
    uint64_t number = 0;
    LayoutSetPtr layouts;
  };
  // ABORTED: memory is not exactly this version now, or its slices are numbered by another layout.
  Result<Found> Find(const VersionAt& at, TrainerRank rank, const Digest& layout) const;
  // Returns whether the slice is held here. False too when the offer has ended.
  bool Holds(uint64_t number, TrainerRank rank, RankSlice slice) const;
  // Copies whole blocks of a slice that is held. ABORTED: the offer has ended. INTERNAL: a device
  // fails.
  Status Read(uint64_t number, TrainerRank rank, const BlockRange& range, MutableByteSpan out);

 private:
  struct Offered {
    uint64_t number;
    EngineWeightsPtr weights;
    VersionAt at;
  };

  mutable Mutex mutex_;
  CondVar read_;
  std::optional<Offered> offered_ GUARDED_BY(mutex_);
  uint64_t last_number_ GUARDED_BY(mutex_) = 0;
  size_t reads_ GUARDED_BY(mutex_) = 0;  // that run
};

}  // namespace dws
