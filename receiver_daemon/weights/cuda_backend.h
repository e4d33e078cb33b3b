// An engine's weights on one CUDA device. The host checks frames and copies them to the device;
// kernels decode, stage, scatter and digest there.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/memory/cuda/dense_writer.h"
#include "common/memory/cuda/device_weights.h"
#include "receiver_daemon/weights/memory_backend.h"
#include "receiver_daemon/weights/slice_places.h"

namespace dws {

// What an operator configures for the work on devices.
struct CudaOptions {
  cuda::DutyCycle duty;  // while the engine generates
};

// Lifecycle and threads: as MemoryBackend.
class CudaBackend final : public MemoryBackend {
 public:
  // RESOURCE_EXHAUSTED: the device has no memory. INTERNAL: the device fails.
  static Result<std::unique_ptr<CudaBackend>> Create(cuda::CudaDevicePtr device,
                                                     SlicePlaces<cuda::Place> places,
                                                     const CudaOptions& options);

  size_t PlaceCount(TrainerRank rank, RankSlice slice) const override {
    return places_.Count(rank, slice);
  }
  Result<std::vector<std::vector<Digest>>> Digests(const RankLayout& layout, TrainerRank rank,
                                                   std::span<const RankSlice> slices, Pace pace,
                                                   ThreadPool& pool) override;
  Status Read(const RankLayout& layout, TrainerRank rank, RankSlice slice, uint32_t first_block,
              MutableByteSpan out) override;
  Result<std::unique_ptr<StagedFrames>> Stage(const FrameSet& set, StagingBudget& budget,
                                              ThreadPool& pool) override;
  Status Scatter(std::span<const StagedFrames* const> parts, ThreadPool& pool) override;
  Status ApplyInPlace(const FrameSet& set, ThreadPool& pool) override;
  Status WriteFull(const RankLayout& layout, TrainerRank rank, const BlockRange& blocks,
                   ByteSpan bytes) override;
  bool on_device() const override { return true; }
  Result<std::vector<uint8_t>> WriteLent(const RankLayout& layout, TrainerRank rank,
                                         std::span<const LentSlice> slices) override;
  Result<Lent> StageLent(const RankLayout& layout, TrainerRank rank,
                         std::span<const LentSlice> slices, StagingBudget& budget) override;
  Status Synchronize() override { return weights_->Synchronize(); }
  Duration UploadTime() const override { return weights_->upload_time(); }

 private:
  CudaBackend(std::unique_ptr<cuda::DeviceWeights> weights, SlicePlaces<cuda::Place> places)
      : weights_(std::move(weights)),
        places_(std::move(places)),
        writer_(weights_->device_ptr(), weights_->places()) {}

  const std::unique_ptr<cuda::DeviceWeights> weights_;
  const SlicePlaces<cuda::Place> places_;
  cuda::DenseWriter writer_;
};

}  // namespace dws
