// GPU memory that another process of this host lends, to be read: one allocation, mapped for each
// device that reads it.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/base/unique_fd.h"
#include "common/memory/cuda/ipc/cuda_region.h"
#include "common/memory/region_handle.h"

namespace dws::cuda {

// Lifecycle: maps on first use; the destructor unmaps. Synchronize all work on the memory before.
// Threads: safe from any.
class LentMemory {
 public:
  // `descriptors`: those of the chunks of `handle`, in order. Nothing is checked yet.
  LentMemory(RegionHandle handle, std::vector<UniqueFd> descriptors)
      : handle_(std::move(handle)), descriptors_(std::move(descriptors)) {}

  uint64_t size_bytes() const { return handle_.size_bytes; }
  // "a GPU" if the handle names none.
  std::string device_uuid() const;

  // The address of its first byte in the context of `device`, which may be another one than the
  // memory's. Errors as CudaRegion::Import's.
  Result<uint64_t> AddressOn(const CudaDevicePtr& device);

 private:
  const RegionHandle handle_;
  const std::vector<UniqueFd> descriptors_;
  Mutex mutex_;
  std::map<CudaDevicePtr, CudaRegion> mapped_ GUARDED_BY(mutex_);
};

}  // namespace dws::cuda
