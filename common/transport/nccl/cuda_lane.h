// Lanes on a CUDA device, as broadcasts use them. They need no kernels of ours, so they work in
// every build, with any driver that NCCL supports.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/transport/nccl/device_lane.h"

namespace dws::nccl {

// A device that lanes are made on, and its UUID for messages.
struct CudaLanes {
  DeviceLaneSource source;
  std::string uuid;
};

// Loads the driver. `gpu`: a UUID ("GPU-...") or a number among the devices this process sees;
// empty: the only one. UNAVAILABLE: there is no driver, or no device. NOT_FOUND: there is no such
// device; the message lists those that exist. INVALID_ARGUMENT: there are several devices, and none
// is named. INTERNAL: the driver's error. The source gives the same errors.
Result<CudaLanes> OpenCudaLanes(std::string_view gpu);

// The number of the device that `gpu` names, among devices with these UUIDs. Errors as above.
Result<int> ChooseDevice(std::string_view gpu, const std::vector<std::string>& uuids);

}  // namespace dws::nccl
