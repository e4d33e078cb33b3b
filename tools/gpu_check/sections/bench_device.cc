// One thread less than processors, because the caller works as well.
#include "tools/gpu_check/sections/bench_device.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "common/base/file_system.h"
#include "common/memory/cuda/kernel_image.h"

namespace dws::gpu_check {
namespace {

constexpr uint64_t kKernelsBytesMax = uint64_t{64} << 20;

}  // namespace

Result<BenchDevice> OpenBenchDevice(const Options& options) {
  BenchDevice opened;
  DWS_ASSIGN_OR_RETURN(opened.driver, cuda::CudaDriver::Load());
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> uuids, opened.driver->DeviceUuids());
  if (!options.kernels.empty()) {
    DWS_ASSIGN_OR_RETURN(opened.image,
                         PosixFileSystem().ReadFile(options.kernels, kKernelsBytesMax));
  }
  opened.devices = std::make_unique<cuda::CudaDevices>(
      options.kernels.empty() ? cuda::KernelImage() : ByteSpan(opened.image));
  DWS_ASSIGN_OR_RETURN(opened.device,
                       opened.devices->Open(options.gpu.empty() ? uuids.front() : options.gpu));
  DWS_RETURN_IF_ERROR(opened.device->Enter());
  opened.pool = std::make_unique<ThreadPool>(std::max(std::thread::hardware_concurrency(), 1U) - 1);
  return opened;
}

}  // namespace dws::gpu_check
