// What an engine holds of one trainer rank, as the weights that deltas are composed over.
#pragma once

#include <span>

#include "common/delta/squash.h"
#include "receiver_daemon/weights/engine_weights.h"

namespace dws {

// Refers to objects that its maker owns. Threads: one.
class HeldWeights final : public OldWeights {
 public:
  // `live`: the tracked states of all slices of the rank.
  HeldWeights(const EngineWeights& weights, TrainerRank rank, std::span<const SliceState> live)
      : weights_(weights), rank_(rank), live_(live) {}

  // Also false where copies differ.
  bool Has(RankSlice slice, const Digest& digest) const override {
    const SliceState& state = live_[slice.value()];
    return state.kind == SliceState::Kind::kHeld && state.digest == digest;
  }
  Status Read(RankSlice slice, uint32_t first_block, MutableByteSpan out) const override {
    return weights_.Read(rank_, slice, first_block, out);
  }

 private:
  const EngineWeights& weights_;
  const TrainerRank rank_;
  const std::span<const SliceState> live_;
};

}  // namespace dws
