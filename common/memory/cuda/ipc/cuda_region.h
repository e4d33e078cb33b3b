// Imported device memory of another process, as HostRegion is for host memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/memory/cuda/cuda_device.h"
#include "common/memory/region_handle.h"

namespace dws::cuda {

// An imported memory pool of another process. Regions in it keep it alive.
class CudaPool;
using CudaPoolPtr = std::shared_ptr<const CudaPool>;

// Where imported memory may lie.
enum class Home : uint8_t {
  kHere,  // on the device that imports it
  kPeer,  // there, or on a device that it reaches directly
};

// Owns the mapping. Moved, never copied. Lifecycle: keeps its device open. The destructor unmaps;
// synchronize all work on the memory before. Threads: as CudaBuffer.
class CudaRegion {
 public:
  // Maps all chunks of `handle` side by side, for reading and writing. `descriptors` are those of
  // its chunks, in order; they are closed in any case.
  //
  // INVALID_ARGUMENT: sizes, handle bytes or the number of descriptors do not fit, or the driver
  //   reports another size or device than the handle.
  // UNIMPLEMENTED, with a remedy: the chunks are of kinds that cannot be combined, or that this
  //   driver or container does not support.
  // FAILED_PRECONDITION: this process itself exported a legacy handle (the driver does not report
  //   this for other kinds).
  // INTERNAL: the driver's error, by name, with its usual cause (for example an IPC or PID
  //   namespace that is not shared).
  //
  // `pool` passes the pool of one region on to the next, because only the first region of a pool
  // has the pool's descriptor. Pass the same one for all regions of a registration, in order.
  // With Home::kPeer UNIMPLEMENTED and INTERNAL also say that `device` does not reach the memory.
  static Result<CudaRegion> Import(CudaDevicePtr device, const RegionHandle& handle,
                                   std::vector<UniqueFd> descriptors, CudaPoolPtr* pool = nullptr,
                                   Home home = Home::kHere);

  CudaRegion();
  CudaRegion(CudaRegion&& other) noexcept;
  CudaRegion& operator=(CudaRegion&& other) noexcept;
  ~CudaRegion();

  uint64_t size_bytes() const;
  // The address of its first byte in this process's context of the device.
  uint64_t address() const;
  // Null if the region is empty: default or moved-from.
  CudaDevicePtr device() const;

 private:
  struct Mapping;
  explicit CudaRegion(std::unique_ptr<Mapping> mapping);

  std::unique_ptr<Mapping> mapping_;
};

}  // namespace dws::cuda
