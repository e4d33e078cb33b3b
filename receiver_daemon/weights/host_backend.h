// An engine's weights in host memory, which CPU cores read and write: frame by frame, over a thread
// pool.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "common/memory/segment_map.h"
#include "receiver_daemon/weights/memory_backend.h"
#include "receiver_daemon/weights/slice_places.h"

namespace dws {

// Lifecycle and threads: as MemoryBackend.
class HostBackend final : public MemoryBackend {
 public:
  // `places` refer to memory that outlives this.
  explicit HostBackend(SlicePlaces<SegmentMap> places) : places_(std::move(places)) {}

  std::span<const SegmentMap> At(TrainerRank rank, RankSlice slice) const {
    return places_.At(rank, slice);
  }

  size_t PlaceCount(TrainerRank rank, RankSlice slice) const override {
    return places_.At(rank, slice).size();
  }
  Result<std::vector<std::vector<Digest>>> Digests(const RankLayout& layout, TrainerRank rank,
                                                   std::span<const RankSlice> slices, Pace pace,
                                                   ThreadPool& pool) override;
  Status Read(const RankLayout& layout, TrainerRank rank, RankSlice slice, uint32_t first_block,
              MutableByteSpan out) override;
  Result<std::unique_ptr<StagedFrames>> Stage(const FrameSet& set, StagingBudget& budget,
                                              ThreadPool& pool) override;
  Status Scatter(std::span<const StagedFrames* const> parts, ThreadPool& pool) override;
  Status ApplyInPlace(const FrameSet& set, ThreadPool& pool) override;
  Status WriteFull(const RankLayout& layout, TrainerRank rank, const BlockRange& blocks,
                   ByteSpan bytes) override;
  Status Synchronize() override { return OkStatus(); }

 private:
  const SlicePlaces<SegmentMap> places_;
};

}  // namespace dws
