#include "receiver_daemon/commit/staging.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "common/base/failpoint.h"
#include "common/delta/diff.h"
#include "common/model/limits.h"
#include "common/sync_state/receiver_plan.h"
#include "receiver_daemon/commit/block_source.h"
#include "receiver_daemon/commit/frame_stager.h"

namespace dws {
namespace {

struct Scratch {
  std::vector<std::byte> frame;
  std::vector<std::byte> block;
  DecodedBlock decoded;
};

// Calls visit(block number, decoded) for each block of a frame. `base` is where class-split blocks
// find their old elements.
Status ForEachBlock(const RankLayout::SliceEntry& slice, const SpooledFrame& frame,
                    const Spool& spool, const SegmentMap* base, Scratch& scratch,
                    const std::function<Status(uint32_t, const DecodedBlock&)>& visit) {
  DWS_ASSIGN_OR_RETURN(const std::vector<EncodedBlockView> blocks,
                       ReadBlocks(slice, frame, spool, scratch.frame));
  for (uint32_t i = 0; i < blocks.size(); ++i) {
    const uint32_t block = frame.entry.first_block + i;
    DWS_RETURN_IF_ERROR(
        DecodeAgainst(slice, frame, base, block, blocks[i], scratch.decoded, scratch.block));
    DWS_RETURN_IF_ERROR(visit(block, scratch.decoded));
  }
  return OkStatus();
}

// Brings one block of live memory to its new state.
void ApplyAt(const RankLayout::SliceEntry& slice, const SegmentMap& place, uint32_t block,
             const DecodedBlock& decoded, std::vector<std::byte>& buffer) {
  const uint64_t first = uint64_t{block} * limits::kBlockElements;
  if (decoded.kind == DecodedBlock::Kind::kNothing) return;
  if (decoded.kind == DecodedBlock::Kind::kDense) return place.Write(first, decoded.dense);
  const uint64_t count = BlockElements(slice.elements, block);
  if (const MutableByteSpan there = place.Contiguous(first, count); !there.empty()) {
    return ApplyBlock(slice.dtype, decoded, there);
  }
  buffer.resize(count * place.element_bytes());
  place.Gather(first, buffer);
  ApplyBlock(slice.dtype, decoded, buffer);
  place.Write(first, buffer);
}

// The reason to reject one slice of the manifest, from the results of its frames.
Status CheckSlice(const TensorSpec& tensor, uint32_t slice_number, const SliceDelta& delta,
                  const SliceState& live, std::span<const FrameStager::Staged> results,
                  std::span<const size_t> frame_numbers, size_t place_count) {
  const std::string name = fmt::format("tensor '{}' slice {}", tensor.name, slice_number);
  for (size_t p = 0; p < place_count; ++p) {
    Digest predicted = live.digest;
    Status damaged = OkStatus();
    for (const size_t frame : frame_numbers) {
      if (damaged.ok()) damaged = results[frame].status;
      if (damaged.ok()) predicted += results[frame].differences[p];
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

}  // namespace

StagedDelta StageDelta(const EngineWeights& weights, TrainerRank rank,
                       const DeltaManifest& manifest, std::span<const SpooledFrame> frames,
                       const Spool& spool, std::span<const SliceState> live,
                       uint64_t staging_bytes_max, ThreadPool& pool) {
  const RankLayout& layout = weights.layouts().rank(rank);
  StagingBudget budget(staging_bytes_max);
  std::vector<FrameStager::Staged> results(frames.size());
  std::vector<FrameStager> stagers;
  stagers.reserve(pool.worker_count());
  for (size_t i = 0; i < pool.worker_count(); ++i) stagers.emplace_back(budget);
  pool.ParallelFor(frames.size(), [&](size_t index, size_t worker) {
    const SpooledFrame& frame = frames[index];
    const auto places = weights.Places(rank, frame.slice);
    if (places.empty()) return;
    results[index] = stagers[worker].Stage(layout.slice(frame.slice), places, frame, spool);
  });

  StagedDelta staged;
  staged.in_place = budget.passed();
  if (!staged.in_place) {
    size_t runs = 0;
    for (const FrameStager::Staged& result : results) runs += result.run_count;
    staged.writes.ReserveRuns(runs);
  }
  size_t next = 0;
  for (const SliceDelta& delta : manifest.slices) {
    std::vector<size_t> numbers;
    for (; next < frames.size() && frames[next].slice == delta.slice; ++next)
      numbers.push_back(next);
    const auto places = weights.Places(rank, delta.slice);
    if (places.empty()) continue;
    Status status = CheckSlice(layout.tensor(delta.slice), layout.slice(delta.slice).slice, delta,
                               live[delta.slice.value()], results, numbers, places.size());
    if (!status.ok()) {
      staged.rejected.push_back({.slice = delta.slice, .reason = std::move(status)});
      continue;
    }
    if (staged.in_place) continue;
    for (const size_t number : numbers) {
      const FrameStager::Staged& result = results[number];
      staged.writes.AppendRuns(result.stager->writes(), result.first_run, result.run_count);
    }
  }
  if (staged.in_place) return staged;
  for (FrameStager& stager : stagers) staged.writes.TakeMemory(stager.TakeWrites());
  staged.writes.Seal();
  return staged;
}

Status VerifyFull(const RankLayout& layout, std::span<const RankSlice> slices,
                  std::span<const SpooledFrame> frames, const Spool& spool,
                  std::span<const Digest> expected, ThreadPool& pool) {
  std::vector<Digest> digests(frames.size());
  std::vector<Status> statuses(frames.size());
  std::vector<Scratch> scratch(pool.worker_count());
  pool.ParallelFor(frames.size(), [&](size_t index, size_t worker) {
    const RankLayout::SliceEntry& slice = layout.slice(frames[index].slice);
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
  const RankLayout& layout = weights.layouts().rank(rank);
  std::vector<Status> statuses(frames.size());
  std::vector<Scratch> scratch(pool.worker_count());
  pool.ParallelFor(frames.size(), [&](size_t index, size_t worker) {
    const RankLayout::SliceEntry& slice = layout.slice(frames[index].slice);
    const auto places = weights.Places(rank, frames[index].slice);
    if (places.empty()) return;
    Scratch& mine = scratch[worker];
    statuses[index] = ForEachBlock(slice, frames[index], spool, &places[0], mine,
                                   [&](uint32_t block, const DecodedBlock& decoded) {
                                     DWS_KILLPOINT("receiver.commit.inside_apply");
                                     for (const SegmentMap& place : places) {
                                       ApplyAt(slice, place, block, decoded, mine.block);
                                     }
                                     return OkStatus();
                                   });
  });
  for (const Status& status : statuses) DWS_RETURN_IF_ERROR(status);
  return OkStatus();
}

}  // namespace dws
