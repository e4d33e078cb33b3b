#include "common/memory/cuda/cuda_devices.h"

#include "common/base/log/log.h"

namespace dws::cuda {

Result<CudaDevicePtr> CudaDevices::Open(std::string_view uuid) {
  MutexLock lock(mutex_);
  // After a lost GPU every CUDA call of this process fails: do not start on another device.
  if (driver_ != nullptr && !driver_->lost().ok()) {
    return UnavailableError("this process has lost a GPU and is ending: {}",
                            Message(driver_->lost()));
  }
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

Status CudaDevices::lost() const {
  MutexLock lock(mutex_);
  return driver_ == nullptr ? OkStatus() : driver_->lost();
}

}  // namespace dws::cuda
