// GPU memory that another process of this host lends, to be read: one allocation, mapped for each
// device that reads it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/base/unique_fd.h"
#include "common/memory/cuda/ipc/cuda_region.h"
#include "common/memory/region_handle.h"

namespace dws::cuda {

// Until when the memory is lent.
struct LoanTime {
  const Clock& clock;  // outlives the memory
  TimePoint until;
};

// Lifecycle: maps on first use; the destructor unmaps. Synchronize all work on the memory before.
// Threads: safe from any.
class LentMemory {
 public:
  // `descriptors`: those of the chunks of `handle`, in order. Nothing is checked yet.
  // `time`: none: the owner sets no limit.
  LentMemory(RegionHandle handle, std::vector<UniqueFd> descriptors,
             std::optional<LoanTime> time = std::nullopt)
      : handle_(std::move(handle)), descriptors_(std::move(descriptors)), time_(time) {}

  uint64_t size_bytes() const { return handle_.size_bytes; }
  // "a GPU" if the handle names none.
  std::string device_uuid() const;

  // The address of its first byte in the context of `device`, which may be another one than the
  // memory's. Errors as CudaRegion::Import's, and CheckTime's.
  Result<uint64_t> AddressOn(const CudaDevicePtr& device);
  // Returns whether it was mapped for the device that it lies on.
  bool mapped_on_own_device() const;
  // Call it before more is read, and after the last read has ended. DEADLINE_EXCEEDED: the time of
  // the loan is over, and what was read may not be used.
  Status CheckTime() const;

 private:
  const RegionHandle handle_;
  const std::vector<UniqueFd> descriptors_;
  const std::optional<LoanTime> time_;
  mutable Mutex mutex_;
  std::map<CudaDevicePtr, CudaRegion> mapped_ GUARDED_BY(mutex_);
};

}  // namespace dws::cuda
