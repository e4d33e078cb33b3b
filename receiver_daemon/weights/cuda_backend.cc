#include "receiver_daemon/weights/cuda_backend.h"

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/model/limits.h"
#include "receiver_daemon/weights/cuda_lent.h"
#include "receiver_daemon/weights/frame_items.h"

namespace dws {
namespace {

Digest DigestOf(const cuda::KernelDigest& digest) {
  return {.lane0 = digest.lane0, .lane1 = digest.lane1};
}

// Refers to the backend's DeviceWeights, which must outlive it.
class StagedOnDevice final : public StagedFrames {
 public:
  StagedOnDevice(cuda::DeviceWeights& weights, std::vector<Frame> frames, cuda::StagedBlocks blocks)
      : weights_(weights), blocks_(std::move(blocks)) {
    frames_ = std::move(frames);
  }

  Status Seal(std::span<const uint8_t> kept) override {
    DWS_CHECK(kept.size() == frames_.size());
    MutexLock lock(weights_.turn());
    return blocks_.Seal(weights_, kept);
  }
  uint64_t size_bytes() const override { return blocks_.size_bytes(); }
  const cuda::StagedBlocks& blocks() const { return blocks_; }

 private:
  cuda::DeviceWeights& weights_;
  cuda::StagedBlocks blocks_;
};

// A device reports only how many blocks are damaged, not the kind of damage.
Status DamagedOnDevice(uint32_t failures) {
  return DataLossError("{} blocks of a frame are damaged", failures);
}

}  // namespace

Result<std::unique_ptr<CudaBackend>> CudaBackend::Create(cuda::CudaDevicePtr device,
                                                         SlicePlaces<cuda::Place> places,
                                                         const CudaOptions& options) {
  DWS_ASSIGN_OR_RETURN(std::unique_ptr<cuda::DeviceWeights> weights,
                       cuda::DeviceWeights::Create(std::move(device), places.all(), options.duty));
  return std::unique_ptr<CudaBackend>(new CudaBackend(std::move(weights), std::move(places)));
}

Result<std::vector<std::vector<Digest>>> CudaBackend::Digests(const RankLayout& layout,
                                                              TrainerRank rank,
                                                              std::span<const RankSlice> slices,
                                                              Pace pace, ThreadPool&) {
  std::vector<cuda::DigestBlock> blocks;
  uint32_t results = 0;
  for (const RankSlice slice : slices) {
    for (size_t p = 0; p < PlaceCount(rank, slice); ++p, ++results) {
      cuda::AddDigestBlocks(layout.slice(slice),
                            static_cast<uint32_t>(places_.First(rank, slice) + p), results, blocks);
    }
  }
  // Other receivers may read at the same time (ServedWeights).
  MutexLock lock(weights_->turn());
  DWS_ASSIGN_OR_RETURN(const std::vector<cuda::KernelDigest> sums,
                       weights_->Digests(blocks, results, pace));
  std::vector<std::vector<Digest>> digests(slices.size());
  size_t next = 0;
  for (size_t i = 0; i < slices.size(); ++i) {
    for (size_t p = 0; p < PlaceCount(rank, slices[i]); ++p) {
      digests[i].push_back(DigestOf(sums[next++]));
    }
  }
  DWS_CHECK(next == sums.size());
  return digests;
}

Status CudaBackend::Read(const RankLayout& layout, TrainerRank rank, RankSlice slice,
                         uint32_t first_block, MutableByteSpan out) {
  DWS_CHECK(PlaceCount(rank, slice) > 0);
  MutexLock lock(weights_->turn());
  return weights_->Read(
      {.first_element = uint64_t{first_block} * limits::kBlockElements,
       .place = static_cast<uint32_t>(places_.First(rank, slice)),
       .element_bytes = static_cast<uint8_t>(ElementBytes(layout.slice(slice).dtype))},
      out);
}

Result<std::unique_ptr<StagedFrames>> CudaBackend::Stage(const FrameSet& set, StagingBudget& budget,
                                                         ThreadPool& pool) {
  const FrameResults results = NumberResults(set, places_);
  std::vector<Status> statuses(set.frames.size());
  // The parts of several trainer ranks are staged concurrently; a device stages one at a time.
  MutexLock lock(weights_->turn());
  cuda::StagingRun run(*weights_, cuda::StagingRun::Mode::kKeep, results.count(), &budget);
  DWS_RETURN_IF_ERROR(ForEachFrameItems(
      set, places_, results, pool, statuses,
      [&](std::span<const cuda::StageItem> items) { return run.Add(items, pool); }));
  DWS_ASSIGN_OR_RETURN(cuda::StagingRun::Outcome outcome, run.Finish());
  DWS_CHECK(outcome.differences.size() == results.count());
  DWS_CHECK(outcome.failures.size() == results.count());

  std::vector<StagedFrames::Frame> frames(set.frames.size());
  for (size_t i = 0; i < frames.size(); ++i) {
    frames[i].status = std::move(statuses[i]);
    for (size_t result = results.first[i]; result < results.first[i + 1]; ++result) {
      frames[i].differences.push_back(DigestOf(outcome.differences[result]));
      if (frames[i].status.ok() && outcome.failures[result] > 0) {
        frames[i].status = DamagedOnDevice(outcome.failures[result]);
      }
    }
  }
  return std::unique_ptr<StagedFrames>(
      std::make_unique<StagedOnDevice>(*weights_, std::move(frames), std::move(outcome.staged)));
}

Status CudaBackend::Scatter(std::span<const StagedFrames* const> parts, ThreadPool&) {
  for (const StagedFrames* part : parts) {
    DWS_KILLPOINT("receiver.commit.inside_scatter");
    DWS_RETURN_IF_ERROR(static_cast<const StagedOnDevice*>(part)->blocks().BeginCommit(*weights_));
  }
  return OkStatus();
}

Status CudaBackend::ApplyInPlace(const FrameSet& set, ThreadPool& pool) {
  const FrameResults results = NumberResults(set, places_);
  if (results.count() == 0) return OkStatus();
  std::vector<Status> statuses(set.frames.size());
  cuda::StagingRun run(*weights_, cuda::StagingRun::Mode::kApply, results.count());
  DWS_RETURN_IF_ERROR(ForEachFrameItems(set, places_, results, pool, statuses,
                                        [&](std::span<const cuda::StageItem> items) {
                                          DWS_KILLPOINT("receiver.commit.inside_apply");
                                          return run.Add(items, pool);
                                        }));
  DWS_ASSIGN_OR_RETURN(const cuda::StagingRun::Outcome outcome, run.Finish());
  for (const Status& status : statuses) DWS_RETURN_IF_ERROR(status);
  for (const uint32_t failures : outcome.failures) {
    if (failures > 0) return DamagedOnDevice(failures);
  }
  return OkStatus();
}

Status CudaBackend::WriteFull(const RankLayout& layout, TrainerRank rank, const BlockRange& blocks,
                              ByteSpan bytes) {
  const size_t first = places_.First(rank, blocks.slice);
  for (size_t p = first; p < first + PlaceCount(rank, blocks.slice); ++p) {
    DWS_KILLPOINT("receiver.commit.inside_apply");
    DWS_RETURN_IF_ERROR(writer_.Write(
        {.place = places_.all()[p],
         .place_index = static_cast<uint32_t>(p),
         .first_element = uint64_t{blocks.first_block} * limits::kBlockElements,
         .element_bytes = static_cast<uint8_t>(ElementBytes(layout.slice(blocks.slice).dtype))},
        bytes));
  }
  return OkStatus();
}

Result<std::vector<uint8_t>> CudaBackend::WriteLent(const RankLayout& layout, TrainerRank rank,
                                                    std::span<const LentSlice> slices) {
  MutexLock lock(weights_->turn());
  return dws::WriteLent({*weights_, places_, layout, rank, slices});
}

Result<MemoryBackend::Lent> CudaBackend::StageLent(const RankLayout& layout, TrainerRank rank,
                                                   std::span<const LentSlice> slices,
                                                   StagingBudget& budget) {
  MutexLock lock(weights_->turn());
  DWS_ASSIGN_OR_RETURN(StagedLent staged,
                       dws::StageLent({*weights_, places_, layout, rank, slices}, budget));
  return Lent{.staged = std::make_unique<StagedOnDevice>(
                  *weights_, std::vector<StagedFrames::Frame>(), std::move(staged.blocks)),
              .arrived = std::move(staged.arrived)};
}

}  // namespace dws
