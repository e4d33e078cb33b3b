// The CUDA driver, loaded at run time. No part of DWS links libcuda, so every program starts on
// machines without it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/memory/cuda/driver_api.h"

namespace dws::cuda {

class CudaDriver;
using CudaDriverPtr = std::shared_ptr<const CudaDriver>;

// Lifecycle: the code that opens devices loads it once; it is never unloaded (the driver does not
// support that). Threads: safe from any.
class CudaDriver {
 public:
  // Loads libcuda.so.1 and initialises it. UNAVAILABLE: there is none, it lacks a function, or it
  // finds no device; the message says what to install or to pass into the container.
  static Result<CudaDriverPtr> Load();

  const DriverApi& api() const { return api_; }
  int version() const { return version_; }  // 13000 is 13.0

  // The UUIDs of the devices that this process sees, by ordinal.
  Result<std::vector<std::string>> DeviceUuids() const;

  // OK, or INTERNAL: "<what>: CUDA_ERROR_... (its text)". Out of memory is RESOURCE_EXHAUSTED.
  Status Check(DriverResult result, const char* what) const;

  // Returns OK, or INTERNAL with the first error after which this process can no longer use a
  // device (a "sticky" error in the CUDA programming guide). Only a new process can use it again.
  Status lost() const;

 private:
  CudaDriver() = default;

  DriverApi api_;
  int version_ = 0;
  mutable Mutex mutex_;
  mutable Status lost_ GUARDED_BY(mutex_);
};

}  // namespace dws::cuda
