// From fetched frames to the engine's memory: how a version is verified, staged and committed. No
// network, no protocol; all work runs frame by frame over a thread pool.
//
//   DeltaStager         decodes, reads old values, predicts digests, makes absolute writes.
//                       Writes nothing to engine memory
//   Scatter             engine paused: writes what was staged
//   VerifyFull          full tensors: decodes, sums digests. Touches no engine memory
//   ApplyFramesInPlace  engine paused: frames that were too large to stage, and full tensors
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/memory/staging_budget.h"
#include "common/model/delta_manifest.h"
#include "common/spool/spool.h"
#include "common/spool/spooled_frame.h"
#include "receiver_daemon/weights/engine_weights.h"

namespace dws {

// A slice whose change cannot be applied, and the reason. It needs its full tensor.
struct RejectedSlice {
  RankSlice slice;
  Status reason;
};

// Frames that were staged together: one part for each memory of the engine, in the order of
// EngineWeights::memory().
using StagedParts = std::vector<std::unique_ptr<StagedFrames>>;

// A staged delta. Refers to the memories of its EngineWeights, which must outlive it.
struct StagedDelta {
  std::vector<RejectedSlice> rejected;  // ascending; `groups` has none of their writes
  std::vector<StagedParts> groups;      // sealed
  // Staging exceeded its cap or a device's memory. There are no groups, but every digest was
  // predicted; apply in place.
  bool in_place = false;
};

// Stages one trainer rank's delta group by group, so that it can begin before all of it has
// arrived. Lifecycle: Add any number of times, then Finish, once. Threads: one.
class DeltaStager {
 public:
  // `spare`: where staged writes take their pages from, perhaps none.
  DeltaStager(const EngineWeights& weights, TrainerRank rank, uint64_t staging_bytes_max,
              ThreadPool& pool, std::shared_ptr<SparePages> spare = nullptr)
      : weights_(weights), rank_(rank), pool_(pool), budget_(staging_bytes_max, std::move(spare)) {}

  // Stages frames of slices in any order; those of a slice ascend, over all groups. Errors are
  // those of a device (MemoryBackend::Stage).
  Status Add(std::span<const SpooledFrame> frames, const Spool& spool);
  // Returns whether this frame was added.
  bool Added(RankSlice slice, const FrameEntry& entry) const {
    return added_.contains({slice, entry.first_block});
  }
  // Returns whether the cap was exceeded: then nothing more is kept.
  bool passed() const { return budget_.passed(); }

  // Admits the changes in `manifest` to the slices that the engine holds. `live`: the tracked
  // states of all slices of the rank. A slice is rejected if its live digest is not the delta's
  // base, one of its frames is damaged or is not the manifest's, or the predicted digest is not the
  // manifest's. Errors as Add.
  Result<StagedDelta> Finish(const DeltaManifest& manifest, std::span<const SliceState> live);

 private:
  struct Group {
    std::vector<SpooledFrame> frames;
    StagedParts parts;
    std::vector<uint8_t> kept;  // by frame
  };
  struct Place {
    size_t group = 0;
    size_t frame = 0;  // in that group
  };
  Status CheckSlice(const SliceDelta& delta, const SliceState& live,
                    std::span<const Place> places) const;
  Status CheckFrames(const std::string& name, const SliceDelta& delta,
                     std::span<const Place> places) const;
  // Returns false if a device has no memory for it.
  Result<bool> Seal(StagedDelta& staged);

  const EngineWeights& weights_;
  const TrainerRank rank_;
  ThreadPool& pool_;
  StagingBudget budget_;
  std::vector<Group> groups_;
  std::set<std::pair<RankSlice, uint32_t>> added_;  // slices, and the first blocks of their frames
};

// What one pause writes: by memory, the parts of all trainer ranks. Made before the pause.
using ScatterList = std::vector<std::vector<const StagedFrames*>>;
void AddToList(std::span<const StagedParts> groups, ScatterList& list);
// Writes the parts. Begins in every memory before it waits for any. INTERNAL: a device fails.
Status Scatter(const EngineWeights& weights, const ScatterList& list, ThreadPool& pool);

// OK when `frames` hold every block of exactly `slices` (ascending) as full blocks, and each
// slice's digest is the one in `expected` (by rank slice). DATA_LOSS names the first that does not.
Status VerifyFull(const RankLayout& layout, std::span<const RankSlice> slices,
                  std::span<const SpooledFrame> frames, const Spool& spool,
                  std::span<const Digest> expected, ThreadPool& pool);

// Applies frames that DeltaStager or VerifyFull accepted, directly to memory. After an error some
// of them may be applied. DATA_LOSS, UNAVAILABLE: the spool lost bytes. INTERNAL: a device fails.
Status ApplyFramesInPlace(const EngineWeights& weights, TrainerRank rank,
                          std::span<const SpooledFrame> frames, const Spool& spool,
                          ThreadPool& pool);

}  // namespace dws
