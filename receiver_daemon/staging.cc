// A frame's blocks are handled one after the other by one worker: gather the old bytes, apply,
// compare. Gathering the old bytes anew for each place, instead of once for all copies, is what
// proves that each copy ends as predicted.
#include "receiver_daemon/staging.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>

#include "common/base/failpoint.h"
#include "common/delta/decoder.h"
#include "common/delta/diff.h"
#include "common/delta/frame.h"
#include "common/model/limits.h"

namespace dws {
namespace {

struct Scratch {
  std::vector<std::byte> frame;
  std::vector<std::byte> before;
  std::vector<std::byte> after;
  DecodedBlock decoded;
  BlockChanges changes;
};

// Calls visit(block number, decoded) for each block of a frame.
Status ForEachBlock(const RankLayout::SliceEntry& slice, const SpooledFrame& frame,
                    const Spool& spool, Scratch& scratch,
                    const std::function<Status(uint32_t, const DecodedBlock&)>& visit) {
  DWS_ASSIGN_OR_RETURN(const ByteSpan bytes,
                       spool.Read(frame.spool_offset, frame.entry.size_bytes, scratch.frame));
  DWS_ASSIGN_OR_RETURN(const std::vector<EncodedBlockView> blocks, ParseFrame(bytes, frame.entry));
  for (uint32_t i = 0; i < blocks.size(); ++i) {
    const uint32_t block = frame.entry.first_block + i;
    if (block >= slice.blocks) {
      return DataLossError("a frame holds block {} of a slice of {} blocks", block, slice.blocks);
    }
    DWS_RETURN_IF_ERROR(
        DecodeBlock(slice.dtype, BlockElements(slice.elements, block), blocks[i], scratch.decoded));
    DWS_RETURN_IF_ERROR(visit(block, scratch.decoded));
  }
  return OkStatus();
}

// Reads the old block from `map` and applies the change: before and after are then in `scratch`.
void Predict(const RankLayout::SliceEntry& slice, const SegmentMap& map, uint32_t block,
             const DecodedBlock& decoded, Scratch& scratch) {
  scratch.before.resize(uint64_t{BlockElements(slice.elements, block)} * map.element_bytes());
  map.Gather(uint64_t{block} * limits::kBlockElements, scratch.before);
  scratch.after = scratch.before;
  ApplyBlock(slice.dtype, decoded, scratch.after);
}

// What one frame came to.
struct FrameResult {
  Status status;
  std::vector<Digest> differences;  // by place
  StagedWrites writes;
};

FrameResult StageFrame(const RankLayout::SliceEntry& slice, std::span<const SegmentMap> places,
                       const SpooledFrame& frame, const Spool& spool, uint64_t staging_bytes_max,
                       std::atomic<uint64_t>& staged_bytes, Scratch& scratch) {
  FrameResult result;
  result.differences.resize(places.size());
  uint64_t counted = 0;
  result.status =
      ForEachBlock(slice, frame, spool, scratch, [&](uint32_t block, const DecodedBlock& decoded) {
        if (decoded.kind == DecodedBlock::Kind::kNothing) return OkStatus();
        for (size_t p = 0; p < places.size(); ++p) {
          Predict(slice, places[p], block, decoded, scratch);
          result.differences[p] += DiffBlock(slice.dtype, scratch.before, scratch.after,
                                             slice.BlockFirstWord(block), scratch.changes);
          if (staged_bytes.load(std::memory_order_relaxed) > staging_bytes_max)
            continue;  // dry run
          places[p].StageElements(uint64_t{block} * limits::kBlockElements,
                                  scratch.changes.positions, scratch.after, result.writes);
        }
        const uint64_t size = result.writes.size_bytes();
        staged_bytes.fetch_add(size - counted, std::memory_order_relaxed);
        counted = size;
        return OkStatus();
      });
  return result;
}

// The reason to reject one slice of the manifest, from the results of its frames.
Status CheckSlice(const TensorSpec& tensor, uint32_t slice_number, const SliceDelta& delta,
                  const SliceState& live, std::span<const FrameResult> results,
                  std::span<const size_t> frame_numbers, size_t place_count) {
  const std::string name = fmt::format("tensor '{}' slice {}", tensor.name, slice_number);
  if (!live.Matches(delta.before)) {
    return FailedPreconditionError(
        "{}: the engine has digest {}, the delta needs {}", name,
        live.kind == SliceState::Kind::kDiffers ? "(copies differ)" : ToString(live.digest),
        ToString(delta.before));
  }
  for (size_t p = 0; p < place_count; ++p) {
    Digest predicted = live.digest;
    for (const size_t frame : frame_numbers) {
      if (!results[frame].status.ok()) return Annotate(results[frame].status, name);
      predicted += results[frame].differences[p];
    }
    if (predicted != delta.after) {
      return DataLossError("{} (copy {}): the delta would give digest {}, expected {}", name, p,
                           ToString(predicted), ToString(delta.after));
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
  std::atomic<uint64_t> staged_bytes{0};
  std::vector<FrameResult> results(frames.size());
  std::vector<Scratch> scratch(pool.worker_count());
  pool.ParallelFor(frames.size(), [&](size_t index, size_t worker) {
    const SpooledFrame& frame = frames[index];
    const auto places = weights.Places(rank, frame.slice);
    if (places.empty()) return;
    results[index] = StageFrame(layout.slice(frame.slice), places, frame, spool, staging_bytes_max,
                                staged_bytes, scratch[worker]);
  });

  StagedDelta staged;
  staged.in_place = staged_bytes.load() > staging_bytes_max;
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
    for (const size_t number : numbers) staged.writes.Merge(std::move(results[number].writes));
  }
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
        slice, frames[index], spool, scratch[worker],
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
    statuses[index] = ForEachBlock(
        slice, frames[index], spool, mine, [&](uint32_t block, const DecodedBlock& decoded) {
          DWS_KILLPOINT("receiver.commit.inside_apply");
          const uint64_t first = uint64_t{block} * limits::kBlockElements;
          for (const SegmentMap& place : places) {
            if (decoded.kind == DecodedBlock::Kind::kNothing) continue;
            if (decoded.kind == DecodedBlock::Kind::kDense) {
              place.Write(first, decoded.dense);
              continue;
            }
            Predict(slice, place, block, decoded, mine);
            place.Write(first, mine.after);
          }
          return OkStatus();
        });
  });
  for (const Status& status : statuses) DWS_RETURN_IF_ERROR(status);
  return OkStatus();
}

}  // namespace dws
