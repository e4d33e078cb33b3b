#include "receiver_daemon/commit/verification.h"

#include <utility>

#include "common/base/check.h"

namespace dws {

Verification::Verification(EngineWeightsPtr weights) : weights_(std::move(weights)) {
  for (uint32_t r = 0; r < weights_->layouts().world_size(); ++r) {
    const uint32_t slices = weights_->layouts().rank(TrainerRank(r)).slice_count();
    for (uint32_t s = 0; s < slices; ++s) total_bytes_ += HeldBytes(TrainerRank(r), RankSlice(s));
  }
  SkipToHeld();
}

uint64_t Verification::HeldBytes(TrainerRank rank, RankSlice slice) const {
  return weights_->PlaceCount(rank, slice) *
         weights_->layouts().rank(rank).slice(slice).size_bytes();
}

// Skips slices of which this engine holds no copy: there is nothing to read.
void Verification::SkipToHeld() {
  for (; !done(); ++rank_, slice_ = 0) {
    const uint32_t slices = weights_->layouts().rank(TrainerRank(rank_)).slice_count();
    for (; slice_ < slices; ++slice_) {
      if (HeldBytes(TrainerRank(rank_), RankSlice(slice_)) > 0) return;
    }
  }
}

SliceBatch Verification::Next(uint64_t bytes_max) {
  DWS_CHECK(!done());
  SliceBatch batch{.rank = TrainerRank(rank_), .slices = {}, .bytes = 0};
  while (!done() && TrainerRank(rank_) == batch.rank) {
    const uint64_t bytes = HeldBytes(batch.rank, RankSlice(slice_));
    if (!batch.slices.empty() && batch.bytes + bytes > bytes_max) break;
    batch.slices.emplace_back(slice_);
    batch.bytes += bytes;
    ++slice_;
    SkipToHeld();
  }
  done_bytes_ += batch.bytes;
  return batch;
}

}  // namespace dws
