// The live weights of a whole engine: the memories they are in, over all engine ranks, and digests
// computed from them.
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
#include "receiver_daemon/weights/attached_memory.h"
#include "receiver_daemon/weights/cuda_backend.h"
#include "receiver_daemon/weights/host_backend.h"
#include "receiver_daemon/weights/layout_set.h"
#include "receiver_daemon/weights/memory_backend.h"

namespace dws {

// Lifecycle: made when all engine ranks are attached; keeps their memory mapped. Immutable; the
// bytes it points to are not. Threads: safe from any, but what works on memory from one at a time.
class EngineWeights {
 public:
  // INVALID_ARGUMENT: the ranks together do not fit the layout (see CheckCoverage). INTERNAL,
  // RESOURCE_EXHAUSTED: a device fails.
  static Result<std::shared_ptr<const EngineWeights>> Create(LayoutSetPtr layouts,
                                                             std::vector<AttachedMemoryPtr> ranks,
                                                             Coverage coverage = Coverage::kWhole,
                                                             const CudaOptions& cuda = {});

  const LayoutSet& layouts() const { return *layouts_; }
  const LayoutSetPtr& layouts_ptr() const { return layouts_; }
  // The highest generation of its ranks: another one is another engine.
  Generation generation() const { return generation_; }

  // Which slices these ranks hold.
  EngineShare Share() const;

  // The memories, devices first: theirs is the work that goes on by itself.
  std::span<const std::unique_ptr<MemoryBackend>> memory() const { return memory_; }

  // In how many places, of all memories, the slice is; 0 when it is excluded.
  size_t PlaceCount(TrainerRank rank, RankSlice slice) const;
  bool Holds(TrainerRank rank, RankSlice slice) const { return PlaceCount(rank, slice) > 0; }

  // The places in host memory.
  std::span<const SegmentMap> HostPlaces(TrainerRank rank, RankSlice slice) const;

  // Reads the memory of `slices` of one trainer rank; parallel to `slices`. Meaningful only if
  // nobody writes there meanwhile. INTERNAL: a device fails.
  Result<std::vector<SliceState>> ComputeStates(TrainerRank rank, std::span<const RankSlice> slices,
                                                Pace pace, ThreadPool& pool) const;
  // Of all slices of one trainer rank, whose engine is paused.
  Result<std::vector<SliceState>> ComputeStates(TrainerRank rank, ThreadPool& pool) const;

 private:
  EngineWeights() = default;

  LayoutSetPtr layouts_;
  std::vector<AttachedMemoryPtr> ranks_;
  Generation generation_;
  std::vector<std::unique_ptr<MemoryBackend>> memory_;
  const HostBackend* host_ = nullptr;  // of memory_; none: no host memory
};

using EngineWeightsPtr = std::shared_ptr<const EngineWeights>;

}  // namespace dws
