// The weights of a trainer or engine on one device, as places (kernel_args.h), and the work on
// them: digests and commits here, staging in staging_run.h.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/memory/cuda/cuda_device.h"
#include "common/memory/cuda/kernels/kernel_args.h"
#include "common/memory/cuda/work_lane.h"
#include "common/memory/pace.h"
#include "common/model/layout.h"

namespace dws::cuda {

// The share of a device's time that background work (staging, verification) may use while an engine
// computes on the device.
struct DutyCycle {
  // The share of the time; below 100 the work rests between its pieces.
  uint32_t percent = 100;
};

// Adds the blocks of a slice at one place, for DeviceWeights::Digests.
void AddDigestBlocks(const RankLayout::SliceEntry& slice, uint32_t place, uint32_t result,
                     std::vector<DigestBlock>& blocks);

// Lifecycle: the memory behind `places` must stay mapped. Threads: one at a time. If several
// threads use it, each holds `turn` from the first call of a piece of work to the last.
class DeviceWeights {
 public:
  // Allocates all device memory that it needs later, except staged entries and large results (see
  // Results). RESOURCE_EXHAUSTED, INTERNAL: the device's errors.
  static Result<std::unique_ptr<DeviceWeights>> Create(CudaDevicePtr device,
                                                       std::span<const Place> places,
                                                       DutyCycle duty);

  // Waits for work that still runs: the memory behind the places may be unmapped next.
  ~DeviceWeights() { static_cast<void>(Synchronize()); }

  Mutex& turn() const { return turn_; }
  const CudaDevice& device() const { return *device_; }
  const CudaDevicePtr& device_ptr() const { return device_; }
  uint64_t places() const { return places_.address(); }

  // Adds up the digests of `blocks` by their result numbers, which are below `result_count`. The
  // duty cycle applies to background work only.
  Result<std::vector<KernelDigest>> Digests(std::span<const DigestBlock> blocks,
                                            size_t result_count, Pace pace) {
    return DigestsAt(places_.address(), blocks, result_count, pace);
  }
  // Like Digests, but of the Place[] at the address `places` of this device.
  Result<std::vector<KernelDigest>> DigestsAt(uint64_t places, std::span<const DigestBlock> blocks,
                                              size_t result_count, Pace pace);

  // Copies live elements of one place to `out`, in slice order: from `from.first_element` on, which
  // begins a block. `from.target` and `from.elements` are not used. Background work.
  Status Read(const GatherBlock& from, MutableByteSpan out);

  // Returns zeroed memory for the results of one piece of work, valid until the next call. At first
  // there is enough for one result for each place, at least kResultBytesMin; a call that needs more
  // allocates it.
  Result<uint64_t> Results(uint64_t size_bytes);

  // Begins to write what is staged at absolute addresses (an arena of 0) to live memory:
  // `block_count` CommitBlocks at `blocks`, on the device. Call Synchronize to wait for the end.
  Status BeginCommit(uint64_t blocks, uint32_t block_count);
  // For how long the host has copied input for this device to page-locked memory so far, and
  // started its copies to the device. Threads: safe from any.
  std::chrono::nanoseconds upload_time() const {
    return std::chrono::nanoseconds(upload_nanoseconds_.load());
  }
  void AddUploadTime(std::chrono::nanoseconds time) { upload_nanoseconds_ += time.count(); }

  // Waits for all work that was begun here.
  Status Synchronize();

  // The next lane in turn, after its Begin.
  Result<WorkLane*> NextLane();
  // Call it after you start a piece of background work on `lane`: it rests if the duty cycle
  // requires it.
  Status Rest(const WorkLane& lane) const;

  static constexpr uint64_t kResultBytesMin = uint64_t{1} << 20;

 private:
  DeviceWeights(CudaDevicePtr device, DutyCycle duty) : device_(std::move(device)), duty_(duty) {}
  Status BeginRead(GatherBlock from, MutableByteSpan out);

  const CudaDevicePtr device_;
  const DutyCycle duty_;
  CudaBuffer places_;
  CudaBuffer results_;
  CudaStream commit_;
  std::array<WorkLane, 2> lanes_;
  size_t next_lane_ = 0;
  std::atomic<int64_t> upload_nanoseconds_{0};
  mutable Mutex turn_;
};

}  // namespace dws::cuda
