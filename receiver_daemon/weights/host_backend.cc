#include "receiver_daemon/weights/host_backend.h"

#include <algorithm>
#include <functional>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/delta/blocks/diff.h"
#include "common/memory/staged_writes.h"
#include "common/memory/stream_copy.h"
#include "common/model/limits.h"
#include "receiver_daemon/weights/block_source.h"
#include "receiver_daemon/weights/frame_stager.h"

namespace dws {
namespace {

// Blocks that one step of a parallel digest reads: 4 MiB of BF16.
constexpr uint32_t kBlocksPerStep = 32;
// Shares of each part's writes: small ones, so that workers which start late still finish together.
constexpr size_t kScatterSharesPerWorker = 8;

// Refers to the caller's budget until it is sealed.
class StagedOnHost final : public StagedFrames {
 public:
  StagedOnHost(size_t frame_count, StagingBudget& budget, size_t worker_count)
      : budget_(budget), parts_(frame_count) {
    frames_.resize(frame_count);
    stagers_.reserve(worker_count);
    for (size_t i = 0; i < worker_count; ++i) stagers_.emplace_back(budget);
  }

  void Stage(const FrameSet& set, std::span<const SegmentMap> places, size_t frame, size_t worker) {
    DWS_CHECK(worker < stagers_.size() && frame < parts_.size());
    const RankLayout::SliceEntry& slice = set.layout.slice(set.frames[frame].slice);
    FrameStager::Staged staged =
        stagers_[worker].Stage(slice, places, set.frames[frame], set.spool);
    frames_[frame] = {.status = std::move(staged.status),
                      .differences = std::move(staged.differences)};
    parts_[frame] = {
        .stager = staged.stager, .first_run = staged.first_run, .run_count = staged.run_count};
  }

  Status Seal(std::span<const uint8_t> kept) override {
    DWS_CHECK(kept.size() == parts_.size());
    if (!budget_.passed()) {
      size_t runs = 0;
      for (const Part& part : parts_) runs += part.run_count;
      writes_.ReserveRuns(runs);
      for (size_t i = 0; i < parts_.size(); ++i) {
        if (kept[i] == 0 || parts_[i].run_count == 0) continue;
        writes_.AppendRuns(parts_[i].stager->writes(), parts_[i].first_run, parts_[i].run_count);
      }
      // The list stays in the memory that was reserved: the budget counts that memory.
      DWS_CHECK(writes_.run_count() <= runs);
      for (FrameStager& stager : stagers_) writes_.TakeMemory(stager.TakeWrites());
    }
    stagers_.clear();
    parts_.clear();
    writes_.Seal();
    return OkStatus();
  }

  uint64_t size_bytes() const override { return writes_.size_bytes(); }
  const StagedWrites& writes() const { return writes_; }

 private:
  // The runs of one frame.
  struct Part {
    const FrameStager* stager = nullptr;
    size_t first_run = 0;
    size_t run_count = 0;
  };

  StagingBudget& budget_;
  std::vector<FrameStager> stagers_;  // by worker; none once sealed
  std::vector<Part> parts_;           // by frame; none once sealed
  StagedWrites writes_;
};

struct DigestStep {
  uint32_t item = 0;  // index in `slices`
  uint32_t place = 0;
  uint32_t first_block = 0;
};

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

// Writes the blocks of a raw frame, without a copy in between.
Status WriteRaw(const FrameSet& set, const SpooledFrame& frame, std::span<const SegmentMap> places,
                BlockScratch& scratch) {
  DWS_ASSIGN_OR_RETURN(const std::vector<EncodedBlockView> blocks,
                       ReadBlocks(set.layout.slice(frame.slice), frame, set.spool, scratch.frame));
  for (uint32_t i = 0; i < blocks.size(); ++i) {
    DWS_KILLPOINT("receiver.commit.inside_apply");
    const uint64_t first = uint64_t{frame.entry.first_block + i} * limits::kBlockElements;
    for (const SegmentMap& place : places) {
      const MutableByteSpan there = place.Contiguous(first, blocks[i].nnz);
      if (there.empty()) {
        place.Write(first, blocks[i].payload);
      } else {
        StreamCopy(there, blocks[i].payload);
      }
    }
  }
  return OkStatus();
}

}  // namespace

Result<std::vector<std::vector<Digest>>> HostBackend::Digests(const RankLayout& layout,
                                                              TrainerRank rank,
                                                              std::span<const RankSlice> slices,
                                                              Pace, ThreadPool& pool) {
  std::vector<DigestStep> steps;
  std::vector<std::vector<Digest>> digests(slices.size());
  for (uint32_t i = 0; i < slices.size(); ++i) {
    const size_t places = PlaceCount(rank, slices[i]);
    digests[i].resize(places);
    for (uint32_t p = 0; p < places; ++p) {
      for (uint32_t b = 0; b < layout.slice(slices[i]).blocks; b += kBlocksPerStep) {
        steps.push_back({.item = i, .place = p, .first_block = b});
      }
    }
  }
  std::vector<Digest> sums(steps.size());
  std::vector<std::vector<std::byte>> scratch(pool.worker_count());
  pool.ParallelFor(steps.size(), [&](size_t index, size_t worker) {
    const DigestStep& step = steps[index];
    const RankLayout::SliceEntry& slice = layout.slice(slices[step.item]);
    const SegmentMap& map = At(rank, slices[step.item])[step.place];
    const uint32_t end = std::min(step.first_block + kBlocksPerStep, slice.blocks);
    for (uint32_t block = step.first_block; block < end; ++block) {
      sums[index] +=
          DigestBytes(OldBlock(slice, map, block, scratch[worker]), slice.BlockFirstWord(block));
    }
  });
  for (size_t i = 0; i < steps.size(); ++i) digests[steps[i].item][steps[i].place] += sums[i];
  return digests;
}

Status HostBackend::Read(const RankLayout&, TrainerRank rank, RankSlice slice, uint32_t first_block,
                         MutableByteSpan out) {
  DWS_CHECK(PlaceCount(rank, slice) > 0);
  At(rank, slice)[0].Gather(uint64_t{first_block} * limits::kBlockElements, out);
  return OkStatus();
}

Result<std::unique_ptr<StagedFrames>> HostBackend::Stage(const FrameSet& set, StagingBudget& budget,
                                                         ThreadPool& pool) {
  auto staged = std::make_unique<StagedOnHost>(set.frames.size(), budget, pool.worker_count());
  pool.ParallelFor(set.frames.size(), [&](size_t index, size_t worker) {
    const auto places = At(set.rank, set.frames[index].slice);
    if (!places.empty()) staged->Stage(set, places, index, worker);
  });
  return std::unique_ptr<StagedFrames>(std::move(staged));
}

// Runs write to different bytes, so any share of any part may go to any worker.
Status HostBackend::Scatter(std::span<const StagedFrames* const> parts, ThreadPool& pool) {
  // Deltas that were staged group by group have many parts.
  const size_t shares = pool.worker_count() == 1 || parts.empty()
                            ? 1
                            : CeilDiv(pool.worker_count() * kScatterSharesPerWorker, parts.size());
  pool.ParallelFor(parts.size() * shares, [&](size_t index, size_t) {
    const StagedWrites& writes = static_cast<const StagedOnHost*>(parts[index / shares])->writes();
    if (writes.run_count() == 0) return;
    DWS_KILLPOINT("receiver.commit.inside_scatter");
    writes.ScatterShare(index % shares, shares);
  });
  return OkStatus();
}

Status HostBackend::ApplyInPlace(const FrameSet& set, ThreadPool& pool) {
  std::vector<Status> statuses(set.frames.size());
  std::vector<BlockScratch> scratch(pool.worker_count());
  pool.ParallelFor(set.frames.size(), [&](size_t index, size_t worker) {
    const SpooledFrame& frame = set.frames[index];
    const RankLayout::SliceEntry& slice = set.layout.slice(frame.slice);
    const auto places = At(set.rank, frame.slice);
    if (places.empty()) return;
    BlockScratch& mine = scratch[worker];
    if (frame.arrived.has_value()) {
      statuses[index] = WriteRaw(set, frame, places, mine);
      return;
    }
    statuses[index] = ForEachBlock(slice, frame, set.spool, &places[0], mine,
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

Status HostBackend::WriteFull(const RankLayout& layout, TrainerRank rank, const BlockRange& blocks,
                              ByteSpan bytes) {
  const uint64_t first = uint64_t{blocks.first_block} * limits::kBlockElements;
  for (const SegmentMap& place : At(rank, blocks.slice)) {
    DWS_KILLPOINT("receiver.commit.inside_apply");
    DWS_CHECK(place.element_bytes() == ElementBytes(layout.slice(blocks.slice).dtype));
    const MutableByteSpan there = place.Contiguous(first, bytes.size() / place.element_bytes());
    if (there.empty()) {
      place.Write(first, bytes);
    } else {
      StreamCopy(there, bytes);
    }
  }
  return OkStatus();
}

}  // namespace dws
