#include "common/memory/cuda/device_weights.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "common/base/threads/cancellation.h"
#include "common/model/limits.h"

namespace dws::cuda {
namespace {

// Bytes of live memory that one piece of a digest reads: less than half a millisecond on an A100.
constexpr uint64_t kDigestBytesMax = uint64_t{512} << 20;
// The largest number of blocks of a piece; their DigestBlocks fit a lane.
constexpr size_t kDigestBlocksMax = 65'536;
static_assert(kDigestBlocksMax * sizeof(DigestBlock) <= WorkLane::kBytesMax);
// Bytes of one piece of a read: whole blocks of any element, which fit a lane.
constexpr uint64_t kReadBytesMax = WorkLane::kScratchBytes;
static_assert(kReadBytesMax % (limits::kBlockElements * sizeof(uint64_t)) == 0);
static_assert(kReadBytesMax / limits::kBlockElements * sizeof(GatherBlock) <= WorkLane::kBytesMax);

}  // namespace

void AddDigestBlocks(const RankLayout::SliceEntry& slice, uint32_t place, uint32_t result,
                     std::vector<DigestBlock>& blocks) {
  for (uint32_t block = 0; block < slice.blocks; ++block) {
    blocks.push_back({.first_element = uint64_t{block} * limits::kBlockElements,
                      .first_word = slice.BlockFirstWord(block),
                      .elements = BlockElements(slice.elements, block),
                      .place = place,
                      .result = result,
                      .element_bytes = static_cast<uint8_t>(ElementBytes(slice.dtype))});
  }
}

Result<std::unique_ptr<DeviceWeights>> DeviceWeights::Create(CudaDevicePtr device,
                                                             std::span<const Place> places,
                                                             DutyCycle duty) {
  DWS_CHECK(!places.empty() && duty.percent >= 1 && duty.percent <= 100);
  std::unique_ptr<DeviceWeights> weights(new DeviceWeights(std::move(device), duty));
  DWS_ASSIGN_OR_RETURN(weights->places_, weights->device_->Allocate(places.size_bytes()));
  const uint64_t results = places.size() * (sizeof(KernelDigest) + sizeof(uint32_t));
  DWS_ASSIGN_OR_RETURN(weights->results_,
                       weights->device_->Allocate(std::max(results, kResultBytesMin)));
  DWS_ASSIGN_OR_RETURN(weights->commit_, weights->device_->CreateStream());
  for (WorkLane& lane : weights->lanes_) {
    DWS_ASSIGN_OR_RETURN(lane, WorkLane::Create(*weights->device_));
  }
  DWS_RETURN_IF_ERROR(
      weights->commit_.CopyToDevice(weights->places_.address(), std::as_bytes(places)));
  DWS_RETURN_IF_ERROR(weights->commit_.Synchronize());
  return weights;
}

Result<WorkLane*> DeviceWeights::NextLane() {
  WorkLane& lane = lanes_[next_lane_];
  next_lane_ = (next_lane_ + 1) % lanes_.size();
  DWS_RETURN_IF_ERROR(lane.Begin());
  return &lane;
}

Status DeviceWeights::Rest(const WorkLane& lane) const {
  if (duty_.percent == 100) return OkStatus();
  const auto began = std::chrono::steady_clock::now();
  DWS_RETURN_IF_ERROR(lane.stream().Synchronize());
  const auto busy = std::chrono::steady_clock::now() - began;
  const auto until = began + busy * 100 / duty_.percent;
  Cancellation never;
  for (auto now = began; now < until; now = std::chrono::steady_clock::now()) {
    never.Sleep(until - now);
  }
  return OkStatus();
}

Result<uint64_t> DeviceWeights::Results(uint64_t size_bytes) {
  if (results_.size_bytes() < size_bytes) {
    results_ = {};
    DWS_ASSIGN_OR_RETURN(results_, device_->Allocate(size_bytes));
  }
  DWS_RETURN_IF_ERROR(commit_.Zero(results_.address(), size_bytes));
  DWS_RETURN_IF_ERROR(commit_.Synchronize());
  return results_.address();
}

Result<std::vector<KernelDigest>> DeviceWeights::DigestsAt(uint64_t places,
                                                           std::span<const DigestBlock> blocks,
                                                           size_t result_count, Pace pace) {
  std::vector<KernelDigest> digests(result_count);
  if (blocks.empty()) return digests;
  DWS_ASSIGN_OR_RETURN(const uint64_t sums, Results(result_count * sizeof(KernelDigest)));
  while (!blocks.empty()) {
    size_t count = 0;
    for (uint64_t read = 0; count < std::min(blocks.size(), kDigestBlocksMax); ++count) {
      read += uint64_t{blocks[count].elements} * blocks[count].element_bytes;
      if (count > 0 && read > kDigestBytesMax) break;
    }
    DWS_ASSIGN_OR_RETURN(WorkLane* const lane, NextLane());
    const ByteSpan piece = std::as_bytes(blocks.first(count));
    const WorkLane::Room room = lane->Put(piece.size());
    std::memcpy(room.host.data(), piece.data(), piece.size());
    DWS_RETURN_IF_ERROR(lane->Send());
    const DigestArgs args{.blocks = room.address,
                          .places = places,
                          .digests = sums,
                          .block_count = static_cast<uint32_t>(count)};
    DWS_RETURN_IF_ERROR(lane->stream().Launch(Kernel::kDigest, args, count));
    if (pace == Pace::kBackground) DWS_RETURN_IF_ERROR(Rest(*lane));
    blocks = blocks.subspan(count);
  }
  DWS_RETURN_IF_ERROR(Synchronize());
  DWS_RETURN_IF_ERROR(commit_.CopyToHost(std::as_writable_bytes(std::span(digests)), sums));
  DWS_RETURN_IF_ERROR(commit_.Synchronize());
  return digests;
}

Status DeviceWeights::Read(const GatherBlock& from, MutableByteSpan out) {
  Status status = BeginRead(from, out);
  status.Update(Synchronize());  // also after a failure, so that nothing is written to `out` later
  return status;
}

Status DeviceWeights::BeginRead(GatherBlock from, MutableByteSpan out) {
  while (!out.empty()) {
    DWS_ASSIGN_OR_RETURN(WorkLane* const lane, NextLane());
    const MutableByteSpan piece = out.first(std::min<uint64_t>(out.size(), kReadBytesMax));
    std::vector<GatherBlock> blocks;
    for (uint64_t at = 0; at < piece.size();) {
      from.target = lane->scratch() + at;
      from.elements = static_cast<uint32_t>(
          std::min<uint64_t>((piece.size() - at) / from.element_bytes, limits::kBlockElements));
      blocks.push_back(from);
      from.first_element += from.elements;
      at += uint64_t{from.elements} * from.element_bytes;
    }
    const ByteSpan list = std::as_bytes(std::span(blocks));
    const WorkLane::Room room = lane->Put(list.size());
    std::memcpy(room.host.data(), list.data(), list.size());
    DWS_RETURN_IF_ERROR(lane->Send());
    DWS_RETURN_IF_ERROR(
        lane->stream().Launch(Kernel::kGather,
                              GatherArgs{.blocks = room.address,
                                         .places = places_.address(),
                                         .block_count = static_cast<uint32_t>(blocks.size())},
                              blocks.size()));
    DWS_RETURN_IF_ERROR(lane->stream().CopyToHost(piece, lane->scratch()));
    DWS_RETURN_IF_ERROR(Rest(*lane));
    out = out.subspan(piece.size());
  }
  return OkStatus();
}

Status DeviceWeights::BeginCommit(uint64_t blocks, uint32_t block_count) {
  if (block_count == 0) return OkStatus();
  return commit_.Launch(
      Kernel::kCommit,
      CommitArgs{
          .blocks = blocks, .places = places_.address(), .arena = 0, .block_count = block_count},
      block_count);
}

Status DeviceWeights::Synchronize() {
  Status first = commit_.is_open() ? commit_.Synchronize() : OkStatus();
  for (const WorkLane& lane : lanes_) {
    if (lane.stream().is_open()) first.Update(lane.stream().Synchronize());
  }
  return first;
}

}  // namespace dws::cuda
