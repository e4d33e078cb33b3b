// The live weights of a whole engine: for every canonical slice the places it lies in, over all
// engine ranks, and digests computed from them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/memory/segment_map.h"
#include "common/model/digest.h"
#include "common/sync_state/engine_share.h"
#include "common/sync_state/live_state.h"
#include "receiver_daemon/engine/attached_memory.h"
#include "receiver_daemon/engine/layout_set.h"

namespace dws {

// Lifecycle: made when all engine ranks are attached; keeps their memory mapped. Immutable; the
// bytes it points to are not. Threads: safe from any.
class EngineWeights {
 public:
  // INVALID_ARGUMENT: the ranks together do not fit the layout (see CheckCoverage).
  static Result<std::shared_ptr<const EngineWeights>> Create(LayoutSetPtr layouts,
                                                             std::vector<AttachedMemoryPtr> ranks,
                                                             Coverage coverage = Coverage::kWhole);

  const LayoutSet& layouts() const { return *layouts_; }
  const LayoutSetPtr& layouts_ptr() const { return layouts_; }
  // The highest generation of its ranks: another one is another engine.
  Generation generation() const { return generation_; }

  // Which slices these ranks hold.
  EngineShare Share() const;

  // Every place that holds the slice; none when it is excluded.
  std::span<const SegmentMap> Places(TrainerRank rank, RankSlice slice) const;

  // Reads the memory of `slices` of one trainer rank; parallel to `slices`. Meaningful only if
  // nobody writes there meanwhile.
  std::vector<SliceState> ComputeStates(TrainerRank rank, std::span<const RankSlice> slices,
                                        ThreadPool& pool) const;
  // Of all slices of one trainer rank.
  std::vector<SliceState> ComputeStates(TrainerRank rank, ThreadPool& pool) const;

 private:
  struct RankPlaces {
    std::vector<uint32_t> first;  // by rank slice, and the end
    std::vector<SegmentMap> places;
  };
  EngineWeights() = default;

  LayoutSetPtr layouts_;
  std::vector<AttachedMemoryPtr> ranks_;
  Generation generation_;
  std::vector<RankPlaces> places_;  // by trainer rank
};

using EngineWeightsPtr = std::shared_ptr<const EngineWeights>;

}  // namespace dws
