// Stages full tensors from lent GPU memory in the memory of the engine's GPUs, beside the running
// engine: a commit scatters them like a staged delta.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/memory/staging_budget.h"
#include "common/spool/device_target.h"
#include "receiver_daemon/weights/engine_weights.h"
#include "receiver_daemon/weights/staging.h"

namespace dws {

// Lifecycle: one per transfer of one trainer rank; `weights` must outlive it. Threads: one.
class LentCopy final : public DeviceTarget {
 public:
  // `bytes_max`: of staged slices, on all GPUs together.
  LentCopy(const EngineWeights& weights, uint64_t bytes_max)
      : weights_(weights), bytes_max_(bytes_max), budget_(bytes_max) {}

  // Returns whether all of these slices that are on GPUs can be staged there, as far as `bytes_max`
  // goes.
  bool HasRoom(TrainerRank rank, std::span<const RankSlice> slices) const;
  bool Takes(TrainerRank rank, RankSlice slice) const override {
    return weights_.OnDevices(rank, slice);
  }
  Result<std::vector<uint8_t>> Copy(TrainerRank rank, std::span<const LentSlice> slices) override;
  // What was staged, sealed.
  std::vector<StagedParts> TakeStaged() { return std::move(staged_); }

 private:
  const EngineWeights& weights_;
  const uint64_t bytes_max_;
  StagingBudget budget_;
  std::vector<StagedParts> staged_;
};

}  // namespace dws
