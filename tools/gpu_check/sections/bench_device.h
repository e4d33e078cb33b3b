// The device that a section of gpu_check works on.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/memory/cuda/cuda_device.h"
#include "common/memory/cuda/cuda_devices.h"
#include "tools/gpu_check/sections/options.h"

namespace dws::gpu_check {

// Lifecycle: one in each process. Threads: one.
struct BenchDevice {
  std::vector<std::byte> image;  // of --kernels
  cuda::CudaDriverPtr driver;
  std::unique_ptr<cuda::CudaDevices> devices;  // for imports, on the same device
  cuda::CudaDevicePtr device;
  std::unique_ptr<ThreadPool> pool;

  // The fake driver of the tests gives its devices this name.
  bool fake() const { return device->name().find("Fake") != std::string::npos; }
};

// Opens the device that `options` name. UNAVAILABLE: no driver or no device; NOT_FOUND,
// UNIMPLEMENTED, INTERNAL: CudaDevice::Open's; the errors of FileSystem::ReadFile for its kernels.
Result<BenchDevice> OpenBenchDevice(const Options& options);

}  // namespace dws::gpu_check
