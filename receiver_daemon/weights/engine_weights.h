// The live weights of a whole engine: the memories of all engine ranks, and digests computed from
// them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/delta/objects/object_part.h"
#include "common/memory/segment_map.h"
#include "common/model/digest/digest.h"
#include "common/sync_state/engine_share.h"
#include "common/sync_state/live_state.h"
#include "receiver_daemon/weights/attached_memory.h"
#include "receiver_daemon/weights/cuda_backend.h"
#include "receiver_daemon/weights/host_backend.h"
#include "receiver_daemon/weights/layout_set.h"
#include "receiver_daemon/weights/memory_backend.h"

namespace dws {

// Lifecycle: made when all engine ranks are attached; keeps their memory mapped. Immutable, but the
// bytes it refers to change. Threads: safe from any, but while one writes the weights' bytes nobody
// else may read or write them.
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
  // The highest generation of its ranks. Another generation means another engine.
  Generation generation() const { return generation_; }

  // Returns the slices that these ranks hold.
  EngineShare Share() const;

  // The memories, devices first: device work is asynchronous, so callers start it first.
  std::span<const std::unique_ptr<MemoryBackend>> memory() const { return memory_; }

  // How many places hold the slice, over all memories; 0: not held here.
  size_t PlaceCount(TrainerRank rank, RankSlice slice) const;
  // Returns whether the slice is held, and only in the memory of GPUs.
  bool OnDevices(TrainerRank rank, RankSlice slice) const;
  // Returns the sum of MemoryBackend's UploadTime over all memories.
  Duration UploadTime() const;
  // Returns whether no rank holds anything: every tensor is excluded.
  bool empty() const;
  bool Holds(TrainerRank rank, RankSlice slice) const { return PlaceCount(rank, slice) > 0; }
  // Returns the slices of one trainer rank that are held; nullopt: all of them.
  const SliceSelection& Held(TrainerRank rank) const { return held_[rank.value()]; }

  // Fills `out` with whole blocks of a slice that is held, in slice order, from `first_block` on.
  // INTERNAL: a device fails.
  Status Read(TrainerRank rank, RankSlice slice, uint32_t first_block, MutableByteSpan out) const;

  // Reads the memory of `slices` of one trainer rank; the result is parallel to `slices`. The
  // result has a meaning only if nobody writes there meanwhile. INTERNAL: a device fails.
  Result<std::vector<SliceState>> ComputeStates(TrainerRank rank, std::span<const RankSlice> slices,
                                                Pace pace, ThreadPool& pool) const;
  // Like the other ComputeStates, for all slices of one trainer rank, at the pace for a paused
  // engine.
  Result<std::vector<SliceState>> ComputeStates(TrainerRank rank, ThreadPool& pool) const;

 private:
  EngineWeights() = default;
  // Also true for a slice without elements: an engine that holds nothing of it holds all of it.
  bool HasAllOf(const OwnedSlice& slice) const;
  SliceSelection FindHeld(TrainerRank rank) const;

  LayoutSetPtr layouts_;
  std::vector<AttachedMemoryPtr> ranks_;
  Generation generation_;
  std::vector<std::unique_ptr<MemoryBackend>> memory_;
  std::vector<SliceSelection> held_;  // by trainer rank
};

using EngineWeightsPtr = std::shared_ptr<const EngineWeights>;

}  // namespace dws
