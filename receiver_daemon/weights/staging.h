// From fetched frames to the engine's memory: how a version is verified, staged and committed. No
// network, no protocol; all work runs frame by frame over a thread pool.
//
//   StageDelta          decodes, reads old values, predicts digests, makes absolute writes.
//                       Writes nothing to engine memory
//   Scatter             engine paused: writes what was staged
//   VerifyFull          full tensors: decodes, sums digests. Touches no engine memory
//   ApplyFramesInPlace  engine paused: frames that were too large to stage, and full tensors
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/model/delta_manifest.h"
#include "receiver_daemon/spool/spool.h"
#include "receiver_daemon/spool/spooled_frame.h"
#include "receiver_daemon/weights/engine_weights.h"

namespace dws {

// A slice whose change cannot be applied, and why. It needs its full tensor.
struct RejectedSlice {
  RankSlice slice;
  Status reason;
};

// One part for each memory of the engine, in the order of EngineWeights::memory().
using StagedParts = std::vector<std::unique_ptr<StagedFrames>>;

// The result of StageDelta. Refers to the memories of its EngineWeights, which outlives it.
struct StagedDelta {
  std::vector<RejectedSlice> rejected;  // ascending; `parts` has none of their writes
  StagedParts parts;                    // sealed
  // Staging exceeded its cap or a device's memory. There are no parts, but every digest was
  // predicted; apply in place.
  bool in_place = false;
};

// Stages the changes in `manifest` to the slices that the engine holds. `frames` are all frames of
// the object, `live` the tracked states of all slices of the rank. A slice is rejected if its live
// digest is not the delta's base, one of its frames is damaged, or the predicted digest is not the
// manifest's. Errors are those of a device (MemoryBackend::Stage).
Result<StagedDelta> StageDelta(const EngineWeights& weights, TrainerRank rank,
                               const DeltaManifest& manifest, std::span<const SpooledFrame> frames,
                               const Spool& spool, std::span<const SliceState> live,
                               uint64_t staging_bytes_max, ThreadPool& pool);

// What one pause writes: by memory, the parts of all trainer ranks. Made before the pause.
using ScatterList = std::vector<std::vector<const StagedFrames*>>;
void AddToList(const StagedParts& parts, ScatterList& list);
// Writes the parts. Begins in every memory before it waits for any. INTERNAL: a device fails.
Status Scatter(const EngineWeights& weights, const ScatterList& list, ThreadPool& pool);

// OK when `frames` hold every block of exactly `slices` (ascending) as full blocks, and each
// slice's digest is the one in `expected` (by rank slice). DATA_LOSS names the first that does not.
Status VerifyFull(const RankLayout& layout, std::span<const RankSlice> slices,
                  std::span<const SpooledFrame> frames, const Spool& spool,
                  std::span<const Digest> expected, ThreadPool& pool);

// Applies frames that StageDelta or VerifyFull accepted, directly to memory. After an error any
// part of them may be applied. DATA_LOSS, UNAVAILABLE: the spool lost bytes. INTERNAL: a device
// fails.
Status ApplyFramesInPlace(const EngineWeights& weights, TrainerRank rank,
                          std::span<const SpooledFrame> frames, const Spool& spool,
                          ThreadPool& pool);

}  // namespace dws
