// Writes full tensors directly into the memory of an engine that is not released, and knows what
// was written. None of it is proved before a commit reads it back.
#pragma once

#include <set>

#include "common/base/threads/mutex.h"
#include "common/spool/device_target.h"
#include "common/spool/direct_target.h"
#include "receiver_daemon/weights/engine_weights.h"

namespace dws {

// Lifecycle: one per attempt; `weights` must outlive it. Threads: safe from any.
class DirectWrite final : public DirectTarget, public DeviceTarget {
 public:
  explicit DirectWrite(const EngineWeights& weights) : weights_(weights) {}

  Status Write(TrainerRank rank, const BlockRange& blocks, ByteSpan bytes) override;
  bool Takes(TrainerRank rank, RankSlice slice) const override {
    return weights_.OnDevices(rank, slice);
  }
  Result<std::vector<uint8_t>> Copy(TrainerRank rank, std::span<const LentSlice> slices) override;
  // The slices whose contents in memory are no longer known.
  std::set<OwnedSlice> touched() const;

 private:
  const EngineWeights& weights_;
  mutable Mutex mutex_;
  std::set<OwnedSlice> touched_ GUARDED_BY(mutex_);
};

}  // namespace dws
