// The same kernel with which receivers prove what they have committed, over the trainer's memory.
#include "sender_daemon/capture/device_digests.h"

#include <algorithm>

#include "common/base/check.h"

namespace dws {

DeviceDigests::DeviceDigests(cuda::CudaDevicePtr device,
                             std::span<const std::pair<RankSlice, cuda::Place>> places)
    : device_(std::move(device)) {
  for (const auto& [slice, place] : places) {
    slices_.push_back(slice);
    places_.push_back(place);
  }
  DWS_CHECK(std::ranges::is_sorted(slices_));
}

Status DeviceDigests::TakeMemory() {
  if (weights_ != nullptr) return OkStatus();
  DWS_ASSIGN_OR_RETURN(weights_, cuda::DeviceWeights::Create(device_, places_, {}));
  return OkStatus();
}

Result<std::vector<Digest>> DeviceDigests::Of(const RankLayout& layout,
                                              std::span<const RankSlice> slices) {
  Result<std::vector<Digest>> digests = Read(layout, slices);
  if (digests.ok()) return digests;
  // Nothing reads the weights once the trainer has the error.
  if (weights_ != nullptr) (void)weights_->Synchronize();
  return Annotate(digests.status(), fmt::format("the digests of the weights on {} ({})",
                                                device_->uuid(), device_->name()));
}

Result<std::vector<Digest>> DeviceDigests::Read(const RankLayout& layout,
                                                std::span<const RankSlice> slices) {
  DWS_RETURN_IF_ERROR(TakeMemory());
  std::vector<cuda::DigestBlock> blocks;
  for (size_t i = 0; i < slices.size(); ++i) {
    const auto place = std::ranges::lower_bound(slices_, slices[i]);
    DWS_CHECK(place != slices_.end() && *place == slices[i]);
    cuda::AddDigestBlocks(layout.slice(slices[i]), static_cast<uint32_t>(place - slices_.begin()),
                          static_cast<uint32_t>(i), blocks);
  }
  DWS_ASSIGN_OR_RETURN(const std::vector<cuda::KernelDigest> found,
                       weights_->Digests(blocks, slices.size(), Pace::kPaused));
  std::vector<Digest> digests;
  for (const cuda::KernelDigest& digest : found) {
    digests.push_back({.lane0 = digest.lane0, .lane1 = digest.lane1});
  }
  return digests;
}

}  // namespace dws
