// Maps imported device memory, with a function for each kind of handle. CudaRegion owns a Mapping.
// Used only by cuda_region.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/memory/cuda/cuda_device.h"
#include "common/memory/cuda/ipc/cuda_region.h"
#include "common/memory/region_handle.h"

namespace dws::cuda {

// Returns the driver's error as a status: the message says that `what` failed and that `remedy`
// helps. The driver's NOT_SUPPORTED and NOT_PERMITTED become UNIMPLEMENTED.
Status ImportError(const CudaDevice& device, DriverResult result, const char* what,
                   std::string_view remedy);

// Lifecycle: an Import function maps; the destructor unmaps, in reverse order.
struct CudaRegion::Mapping {
  // One cudaMalloc allocation.
  static Status ImportLegacy(const CudaChunkHandle& chunk, Mapping& mapping);
  // VMM chunks, side by side in one address range. `descriptors` has one for each kDescriptor.
  static Status ImportChunks(const std::vector<CudaChunkHandle>& chunks,
                             const std::vector<UniqueFd>& descriptors, Mapping& mapping);
  // One allocation of a pool. `descriptor`: the pool's, which is then imported to `pool`; if it is
  // not valid, the pool is the one in `pool`.
  static Status ImportPooled(const CudaChunkHandle& chunk, const UniqueFd& descriptor,
                             CudaPoolPtr& pool, Mapping& mapping);

  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  CudaDevicePtr device;
  Home home = Home::kHere;
  uint64_t size_bytes = 0;
  uint64_t address = 0;  // 0: nothing is mapped
  CudaChunkHandle::Kind kind = CudaChunkHandle::Kind::kLegacyIpc;
  std::vector<uint64_t> mapped;  // sizes of the VMM chunks mapped so far
  CudaPoolPtr pool;
};

// An imported pool. Lifecycle: mappings hold it, so the destructor releases it after all its
// memory.
class CudaPool {
 public:
  // Errors as ImportError.
  static Result<CudaPoolPtr> Import(CudaDevicePtr device, const UniqueFd& descriptor);
  CudaPool(const CudaPool&) = delete;
  CudaPool& operator=(const CudaPool&) = delete;
  ~CudaPool();

  void* get() const { return pool_; }
  const CudaDevicePtr& device() const { return device_; }

 private:
  CudaPool(CudaDevicePtr device, void* pool) : device_(std::move(device)), pool_(pool) {}

  CudaDevicePtr device_;
  void* pool_;
};

}  // namespace dws::cuda
