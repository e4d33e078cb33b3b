// Somebody's weights on one device, as places (kernel_args.h), and the work on them: digests and
// commits here, staging in staging_run.h.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/memory/cuda/cuda_device.h"
#include "common/memory/cuda/kernels/kernel_args.h"
#include "common/memory/cuda/work_lane.h"
#include "common/memory/pace.h"

namespace dws::cuda {

// How much of a device background work (staging, verification) takes: an engine computes on it.
struct DutyCycle {
  // Of the time; below 100 the work rests between its pieces.
  uint32_t percent = 100;
};

// Lifecycle: while the memory behind `places` is mapped. Threads: one at a time; several hold
// `turn` from a piece of work's first call to its last.
class DeviceWeights {
 public:
  // Takes the memory of the device that it needs later on, but for staged entries and what Results
  // says. Errors: RESOURCE_EXHAUSTED, INTERNAL: the device's.
  static Result<std::unique_ptr<DeviceWeights>> Create(CudaDevicePtr device,
                                                       std::span<const Place> places,
                                                       DutyCycle duty);

  // Waits for what is still on its way: the memory behind the places goes next.
  ~DeviceWeights() { static_cast<void>(Synchronize()); }

  Mutex& turn() const { return turn_; }
  const CudaDevice& device() const { return *device_; }
  uint64_t places() const { return places_.address(); }

  // Adds the digests of `blocks` up by their results, of which there are `result_count`. The duty
  // cycle holds for background work.
  Result<std::vector<KernelDigest>> Digests(std::span<const DigestBlock> blocks,
                                            size_t result_count, Pace pace);

  // Zeroed memory for the results of one piece of work, until the next one asks. There is enough
  // for as many as there are places, and for kResultBytesMin; the first to need more takes that.
  Result<uint64_t> Results(uint64_t size_bytes);

  // Writes what is staged at absolute addresses (an arena of 0) to live memory: `block_count`
  // CommitBlocks at `blocks`, on the device. Begins it; Synchronize ends it.
  Status BeginCommit(uint64_t blocks, uint32_t block_count);
  // Waits for everything asked of this.
  Status Synchronize();

  // The lane whose turn it is, begun.
  Result<WorkLane*> NextLane();
  // After a piece of background work was started on `lane`: rests, if that is asked for.
  Status Rest(const WorkLane& lane) const;

  static constexpr uint64_t kResultBytesMin = uint64_t{1} << 20;

 private:
  DeviceWeights(CudaDevicePtr device, DutyCycle duty) : device_(std::move(device)), duty_(duty) {}

  const CudaDevicePtr device_;
  const DutyCycle duty_;
  CudaBuffer places_;
  CudaBuffer results_;
  CudaStream commit_;
  std::array<WorkLane, 2> lanes_;
  size_t next_lane_ = 0;
  mutable Mutex turn_;
  mutable Mutex rest_mutex_;
  mutable CondVar rested_;
};

}  // namespace dws::cuda
