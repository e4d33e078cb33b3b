#include "common/memory/cuda/cuda_devices.h"

#include "common/base/log.h"

namespace dws::cuda {

Result<CudaDevicePtr> CudaDevices::Open(std::string_view uuid) {
  MutexLock lock(mutex_);
  if (const auto found = devices_.find(uuid); found != devices_.end()) return found->second;
  if (image_.empty()) {
    return UnimplementedError(
        "{} is GPU memory, and this program was built without GPU kernels: use one built with "
        "--config=cuda",
        uuid);
  }
  if (driver_ == nullptr) {
    DWS_ASSIGN_OR_RETURN(driver_, CudaDriver::Load());
  }
  DWS_ASSIGN_OR_RETURN(CudaDevicePtr device, CudaDevice::Open(driver_, uuid, image_));
  LogInfo("gpu_opened", {{"uuid", device->uuid()},
                         {"name", device->name()},
                         {"driver_cuda_version", driver_->version()}});
  devices_.emplace(std::string(uuid), device);
  return device;
}

}  // namespace dws::cuda
