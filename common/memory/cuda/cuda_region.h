// Device memory of another process, imported: what HostRegion is for host memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/memory/cuda/cuda_device.h"
#include "common/memory/region_handle.h"

namespace dws::cuda {

// A memory pool of another process, imported; regions in it keep it.
class CudaPool;
using CudaPoolPtr = std::shared_ptr<const CudaPool>;

// Owns the mapping. Moved, never copied. Lifecycle: keeps its device open; unmapped when destroyed,
// after the work on it was synchronized. Threads: as CudaBuffer.
class CudaRegion {
 public:
  // Maps all chunks of `handle` side by side, for reading and writing. `descriptors` are those of
  // its chunks, in order; they are closed in any case. INVALID_ARGUMENT: sizes, handle bytes or
  // descriptor count do not fit, the driver finds another size than was declared, or another
  // device. UNIMPLEMENTED, with a remedy: chunks of kinds that do not go together, or that this
  // driver or container does not support. FAILED_PRECONDITION: a legacy handle is this process's
  // own (of other kinds the driver does not tell). INTERNAL: the driver's error, by name, with what
  // usually causes it (an IPC or PID namespace not shared, say).
  //
  // `pool` is where the pool of one region waits for the next: a pool's descriptor comes with the
  // first region of it. Give all regions of a registration the same one, in order.
  static Result<CudaRegion> Import(CudaDevicePtr device, const RegionHandle& handle,
                                   std::vector<UniqueFd> descriptors, CudaPoolPtr* pool = nullptr);

  CudaRegion();
  CudaRegion(CudaRegion&& other) noexcept;
  CudaRegion& operator=(CudaRegion&& other) noexcept;
  ~CudaRegion();

  uint64_t size_bytes() const;
  // Of its first byte, as this process's context of the device sees it.
  uint64_t address() const;
  // Null of an empty region: a default or moved-from one.
  CudaDevicePtr device() const;

 private:
  struct Mapping;
  explicit CudaRegion(std::unique_ptr<Mapping> mapping);

  std::unique_ptr<Mapping> mapping_;
};

}  // namespace dws::cuda
