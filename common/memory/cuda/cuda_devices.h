// The devices that this process uses, opened when they are first needed: a daemon that never works
// on GPU memory never loads the driver.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/memory/cuda/cuda_device.h"

namespace dws::cuda {

// Threads: safe from any.
class CudaDevices {
 public:
  // `image` holds the kernels (kernel_image.h) and must outlive this.
  explicit CudaDevices(ByteSpan image) : image_(image) {}

  // Errors of CudaDriver::Load and CudaDevice::Open. UNIMPLEMENTED: this build has no kernels.
  // UNAVAILABLE also after a device is lost.
  Result<CudaDevicePtr> Open(std::string_view uuid);

  // OK, or the error after which this process can no longer use a device (CudaDriver::lost).
  Status lost() const;

 private:
  const ByteSpan image_;
  mutable Mutex mutex_;
  CudaDriverPtr driver_ GUARDED_BY(mutex_);
  // By UUID. A device stays open: making its context is expensive.
  std::map<std::string, CudaDevicePtr, std::less<>> devices_ GUARDED_BY(mutex_);
};

}  // namespace dws::cuda
