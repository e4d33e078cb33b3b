#include "receiver_daemon/weights/staging.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/model/limits.h"
#include "common/sync_state/receiver_plan.h"
#include "receiver_daemon/weights/block_source.h"

namespace dws {
namespace {

// The reason to reject one slice of the manifest, from the results of its frames in one memory.
Status CheckPlaces(const std::string& name, const SliceDelta& delta, const SliceState& live,
                   std::span<const StagedFrames::Frame> frames, size_t place_count) {
  for (const StagedFrames::Frame& frame : frames) {
    DWS_CHECK(frame.differences.size() == place_count);
  }
  for (size_t p = 0; p < place_count; ++p) {
    Digest predicted = live.digest;
    Status damaged = OkStatus();
    for (const StagedFrames::Frame& frame : frames) {
      if (damaged.ok()) damaged = frame.status;
      if (damaged.ok()) predicted += frame.differences[p];
    }
    switch (JudgeSlice(live, delta, predicted)) {
      case SliceVerdict::kOtherBase:
        return FailedPreconditionError(
            "{}: the engine has digest {}, the delta needs {}", name,
            live.kind == SliceState::Kind::kDiffers ? "(copies differ)" : ToString(live.digest),
            ToString(delta.before));
      case SliceVerdict::kOtherResult:
        if (!damaged.ok()) return Annotate(damaged, name);
        return DataLossError("{} (copy {}): the delta would give digest {}, expected {}", name, p,
                             ToString(predicted), ToString(delta.after));
      case SliceVerdict::kAdmitted:
        if (!damaged.ok()) return Annotate(damaged, name);
    }
  }
  return OkStatus();
}

// The frames of a slice: [first, end) of those of its object.
struct SliceFrames {
  size_t first = 0;
  size_t end = 0;
};

Status CheckSlice(const EngineWeights& weights, TrainerRank rank, const SliceDelta& delta,
                  const SliceState& live, const StagedParts& parts, SliceFrames frames) {
  DWS_CHECK(parts.size() == weights.memory().size());
  DWS_CHECK(frames.first <= frames.end);
  const RankLayout& layout = weights.layouts().rank(rank);
  const std::string name = fmt::format("tensor '{}' slice {}", layout.tensor(delta.slice).name,
                                       layout.slice(delta.slice).slice);
  for (size_t m = 0; m < parts.size(); ++m) {
    DWS_RETURN_IF_ERROR(
        CheckPlaces(name, delta, live,
                    std::span(parts[m]->frames()).subspan(frames.first, frames.end - frames.first),
                    weights.memory()[m]->PlaceCount(rank, delta.slice)));
  }
  return OkStatus();
}

}  // namespace

Result<StagedDelta> StageDelta(const EngineWeights& weights, TrainerRank rank,
                               const DeltaManifest& manifest, std::span<const SpooledFrame> frames,
                               const Spool& spool, std::span<const SliceState> live,
                               uint64_t staging_bytes_max, ThreadPool& pool) {
  const FrameSet set{
      .layout = weights.layouts().rank(rank), .rank = rank, .frames = frames, .spool = spool};
  DWS_CHECK(live.size() == set.layout.slice_count());
  StagingBudget budget(staging_bytes_max);
  StagedDelta staged;
  for (const auto& memory : weights.memory()) {
    DWS_ASSIGN_OR_RETURN(staged.parts.emplace_back(), memory->Stage(set, budget, pool));
  }
  std::vector<uint8_t> kept(frames.size(), 0);
  SliceFrames next;
  for (const SliceDelta& delta : manifest.slices) {
    next.first = next.end;
    while (next.end < frames.size() && frames[next.end].slice == delta.slice) ++next.end;
    if (!weights.Holds(rank, delta.slice)) continue;
    Status status = CheckSlice(weights, rank, delta, live[delta.slice.value()], staged.parts, next);
    if (!status.ok()) {
      staged.rejected.push_back({.slice = delta.slice, .reason = std::move(status)});
      continue;
    }
    std::fill(kept.begin() + static_cast<ptrdiff_t>(next.first),
              kept.begin() + static_cast<ptrdiff_t>(next.end), uint8_t{1});
  }
  DWS_CHECK(next.end == frames.size());  // ParseObject orders frames as the manifest's slices
  staged.in_place = budget.passed();
  if (staged.in_place) staged.parts.clear();
  for (const auto& part : staged.parts) {
    const Status sealed = part->Seal(kept);
    if (absl::IsResourceExhausted(sealed)) {  // the device is full: treated as over the cap
      staged.in_place = true;
      staged.parts.clear();
      break;
    }
    DWS_RETURN_IF_ERROR(sealed);
  }
  return staged;
}

void AddToList(const StagedParts& parts, ScatterList& list) {
  if (list.size() < parts.size()) list.resize(parts.size());
  for (size_t m = 0; m < parts.size(); ++m) list[m].push_back(parts[m].get());
}

Status Scatter(const EngineWeights& weights, const ScatterList& list, ThreadPool& pool) {
  DWS_CHECK(list.size() <= weights.memory().size());
  Status first = OkStatus();
  for (size_t m = 0; m < list.size() && first.ok(); ++m) {
    first = weights.memory()[m]->Scatter(list[m], pool);
  }
  // After a failure too: no write is in flight when this returns.
  for (size_t m = 0; m < list.size(); ++m) first.Update(weights.memory()[m]->Synchronize());
  return first;
}

Status VerifyFull(const RankLayout& layout, std::span<const RankSlice> slices,
                  std::span<const SpooledFrame> frames, const Spool& spool,
                  std::span<const Digest> expected, ThreadPool& pool) {
  DWS_CHECK(expected.size() == layout.slice_count());
  std::vector<Digest> digests(frames.size());
  std::vector<Status> statuses(frames.size());
  std::vector<BlockScratch> scratch(pool.worker_count());
  pool.ParallelFor(frames.size(), [&](size_t index, size_t worker) {
    const RankLayout::SliceEntry& slice = layout.slice(frames[index].slice);
    // A file may have lost what was written to it.
    if (frames[index].arrived.has_value() && !spool.on_disk()) {
      digests[index] = *frames[index].arrived;
      return;
    }
    statuses[index] = ForEachBlock(
        slice, frames[index], spool, nullptr, scratch[worker],
        [&](uint32_t block, const DecodedBlock& decoded) -> Status {
          if (decoded.kind != DecodedBlock::Kind::kDense) {
            return DataLossError("block {} of a full tensor is not a full block", block);
          }
          digests[index] += DigestBytes(decoded.dense, slice.BlockFirstWord(block));
          return OkStatus();
        });
  });
  size_t next = 0;
  for (const RankSlice slice : slices) {
    const RankLayout::SliceEntry& entry = layout.slice(slice);
    const std::string name =
        fmt::format("full tensor '{}' slice {}", layout.tensor(slice).name, entry.slice);
    Digest digest;
    uint32_t blocks = 0;
    for (; next < frames.size() && frames[next].slice == slice; ++next) {
      if (!statuses[next].ok()) return Annotate(statuses[next], name);
      if (frames[next].entry.first_block != blocks) {
        return DataLossError("{}: a frame begins at block {}, expected {}", name,
                             frames[next].entry.first_block, blocks);
      }
      blocks += frames[next].entry.block_count;
      digest += digests[next];
    }
    if (blocks != entry.blocks) {
      return DataLossError("{}: {} blocks arrived, expected {}", name, blocks, entry.blocks);
    }
    if (digest != expected[slice.value()]) {
      return DataLossError("{}: arrived with digest {}, expected {}", name, ToString(digest),
                           ToString(expected[slice.value()]));
    }
  }
  if (next != frames.size())
    return DataLossError("{} frames were not asked for", frames.size() - next);
  return OkStatus();
}

Status ApplyFramesInPlace(const EngineWeights& weights, TrainerRank rank,
                          std::span<const SpooledFrame> frames, const Spool& spool,
                          ThreadPool& pool) {
  const FrameSet set{
      .layout = weights.layouts().rank(rank), .rank = rank, .frames = frames, .spool = spool};
  for (const auto& memory : weights.memory()) {
    DWS_RETURN_IF_ERROR(memory->ApplyInPlace(set, pool));
    DWS_RETURN_IF_ERROR(memory->Synchronize());
  }
  return OkStatus();
}

}  // namespace dws
