// From fetched frames to the engine's memory: the leaves of verify, stage and commit. No network,
// no protocol; all work runs frame by frame over a thread pool.
//
//   StageDelta          decode, read the old values, predict digests, make absolute writes. Writes
//   nothing VerifyFull          full tensors: decode and sum digests. Touches no engine memory
//   ApplyFramesInPlace  engine paused: what was too large to stage, and full tensors
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
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

// By memory of the engine.
using StagedParts = std::vector<std::unique_ptr<StagedFrames>>;

struct StagedDelta {
  std::vector<RejectedSlice> rejected;  // ascending; nothing of them is in `parts`
  StagedParts parts;                    // sealed
  // Past the cap: there are no parts, every digest was predicted; apply in place.
  bool in_place = false;
};

// Stages what `manifest` changes of the slices the engine holds. `frames` are all frames of the
// object, `live` the tracked states of all slices of the rank. A slice is rejected when its live
// digest is not the delta's base, a frame of it is damaged, or the predicted digest is not the
// manifest's. Errors are those of a device (MemoryBackend::Stage).
Result<StagedDelta> StageDelta(const EngineWeights& weights, TrainerRank rank,
                               const DeltaManifest& manifest, std::span<const SpooledFrame> frames,
                               const Spool& spool, std::span<const SliceState> live,
                               uint64_t staging_bytes_max, ThreadPool& pool);

// What one pause writes: the parts of all trainer ranks, by memory. Made before the pause.
using ScatterList = std::vector<std::vector<const StagedFrames*>>;
void AddToList(const StagedParts& parts, ScatterList& list);
// Writes them: begins in every memory before one is waited for. INTERNAL: a device.
Status Scatter(const EngineWeights& weights, const ScatterList& list, ThreadPool& pool);

// OK when `frames` hold every block of exactly `slices` (ascending) as full blocks, and each
// slice's digest is the one in `expected` (by rank slice). DATA_LOSS names the first that does not.
Status VerifyFull(const RankLayout& layout, std::span<const RankSlice> slices,
                  std::span<const SpooledFrame> frames, const Spool& spool,
                  std::span<const Digest> expected, ThreadPool& pool);

// Applies frames that StageDelta or VerifyFull accepted, straight to memory. After an error any
// part of them may be applied. DATA_LOSS, UNAVAILABLE: the spool lost bytes. INTERNAL: a device.
Status ApplyFramesInPlace(const EngineWeights& weights, TrainerRank rank,
                          std::span<const SpooledFrame> frames, const Spool& spool,
                          ThreadPool& pool);

}  // namespace dws
