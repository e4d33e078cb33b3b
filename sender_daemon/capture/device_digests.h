// Digests of a trainer's live weights on one GPU: one read of its memory, and no copy of it.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/memory/cuda/cuda_device.h"
#include "common/memory/cuda/device_weights.h"
#include "common/model/digest/digest.h"
#include "common/model/layout.h"

namespace dws {

// Lifecycle: takes its memory by TakeMemory, or on the first Of; the memory behind the places stays
// mapped while it lives. Threads: one at a time.
class DeviceDigests {
 public:
  // `places` ascend by slice.
  DeviceDigests(cuda::CudaDevicePtr device,
                std::span<const std::pair<RankSlice, cuda::Place>> places);

  // RESOURCE_EXHAUSTED, INTERNAL: an error of the GPU.
  Status TakeMemory();

  // The digests of these slices as they are now, in their order. Each has a place here.
  // RESOURCE_EXHAUSTED, INTERNAL: an error of the GPU; the message names it.
  Result<std::vector<Digest>> Of(const RankLayout& layout, std::span<const RankSlice> slices);

 private:
  Result<std::vector<Digest>> Read(const RankLayout& layout, std::span<const RankSlice> slices);

  const cuda::CudaDevicePtr device_;
  std::vector<RankSlice> slices_;  // of places_
  std::vector<cuda::Place> places_;
  std::unique_ptr<cuda::DeviceWeights> weights_;  // null before the first Of
};

}  // namespace dws
