#include "common/memory/cuda/cuda_driver.h"

#include <dlfcn.h>

#include <cstring>
#include <utility>

namespace dws::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";
constexpr int kDevicesMax = 256;

struct Symbol {
  const char* name;
  void* member;  // a function pointer of DriverApi
};

Status LoadSymbols(void* library, DriverApi& api) {
#define DWS_CUDA_SYMBOL(member, symbol, parameters) {#symbol, &api.member},
  const Symbol symbols[] = {DWS_CUDA_DRIVER_FUNCTIONS(DWS_CUDA_SYMBOL)};
#undef DWS_CUDA_SYMBOL
  for (const Symbol& symbol : symbols) {
    void* const function = ::dlsym(library, symbol.name);
    if (function == nullptr) {
      return UnavailableError(
          "the CUDA driver ({}) has no function {}: install version 580 or later", kLibrary,
          symbol.name);
    }
    // POSIX guarantees that a function's address can be stored like an object's.
    std::memcpy(symbol.member, &function, sizeof(function));
  }
  return OkStatus();
}

// Returns whether this process can no longer use the device. After one of these results a context
// answers every call with an error, or this process has lost the driver or its MPS server; only a
// restart connects it again.
bool LosesDevice(DriverResult result) {
  switch (result) {
    case DriverResult::kDeinitialized:
    case DriverResult::kEccUncorrectable:
    case DriverResult::kNvlinkUncorrectable:
    case DriverResult::kContained:
    case DriverResult::kIllegalAddress:
    case DriverResult::kLaunchTimeout:
    case DriverResult::kContextIsDestroyed:
    case DriverResult::kAssert:
    case DriverResult::kHardwareStackError:
    case DriverResult::kIllegalInstruction:
    case DriverResult::kMisalignedAddress:
    case DriverResult::kInvalidAddressSpace:
    case DriverResult::kInvalidPc:
    case DriverResult::kLaunchFailed:
    case DriverResult::kMpsConnectionFailed:
    case DriverResult::kMpsRpcFailure:
    case DriverResult::kMpsClientTerminated:
    case DriverResult::kExternalDevice:
    case DriverResult::kUnknown:
      return true;
    default:
      return false;
  }
}

}  // namespace

Result<CudaDriverPtr> CudaDriver::Load() {
  // Never closed: the driver has its threads and handlers in this process.
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = ::dlerror();
    return UnavailableError(
        "cannot load the CUDA driver ({}): install NVIDIA's driver; in a container, pass the GPUs "
        "in (for Docker --gpus all)",
        reason != nullptr ? reason : kLibrary);
  }
  const std::shared_ptr<CudaDriver> driver(new CudaDriver);
  DWS_RETURN_IF_ERROR(LoadSymbols(library, driver->api_));
  const Status initialised = driver->Check(driver->api_.init(0), "cuInit");
  int count = 0;
  if (initialised.ok()) {
    DWS_RETURN_IF_ERROR(driver->Check(driver->api_.device_get_count(&count), "cuDeviceGetCount"));
    DWS_RETURN_IF_ERROR(
        driver->Check(driver->api_.driver_get_version(&driver->version_), "cuDriverGetVersion"));
  }
  if (!initialised.ok() || count < 1) {
    return UnavailableError(
        "the CUDA driver finds no device ({}): look at nvidia-smi and CUDA_VISIBLE_DEVICES; in a "
        "container, pass the GPUs in",
        initialised.ok() ? "it reports 0 devices" : Message(initialised));
  }
  return CudaDriverPtr(driver);
}

Result<std::vector<std::string>> CudaDriver::DeviceUuids() const {
  int count = 0;
  DWS_RETURN_IF_ERROR(Check(api_.device_get_count(&count), "cuDeviceGetCount"));
  std::vector<std::string> uuids;
  for (int ordinal = 0; ordinal < count && ordinal < kDevicesMax; ++ordinal) {
    int device = 0;
    DeviceUuid uuid = {};
    DWS_RETURN_IF_ERROR(Check(api_.device_get(&device, ordinal), "cuDeviceGet"));
    DWS_RETURN_IF_ERROR(Check(api_.device_get_uuid(&uuid, device), "cuDeviceGetUuid"));
    std::string text = "GPU";
    for (size_t i = 0; i < sizeof(uuid.bytes); ++i) {
      if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
      text += fmt::format("{:02x}", uuid.bytes[i]);
    }
    uuids.push_back(std::move(text));
  }
  return uuids;
}

Status CudaDriver::Check(DriverResult result, const char* what) const {
  if (result == DriverResult::kSuccess) return OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  if (api_.get_error_name(result, &name) != DriverResult::kSuccess) name = nullptr;
  if (api_.get_error_string(result, &text) != DriverResult::kSuccess) text = nullptr;
  const std::string message =
      fmt::format("{}: {} ({})", what,
                  name != nullptr ? name : fmt::format("error {}", static_cast<int>(result)),
                  text != nullptr ? text : "unknown to the driver");
  if (result == DriverResult::kOutOfMemory) return ResourceExhaustedError("{}", message);
  const Status failed = InternalError("{}", message);
  if (LosesDevice(result)) {
    MutexLock lock(mutex_);
    if (lost_.ok()) lost_ = failed;
  }
  return failed;
}

Status CudaDriver::lost() const {
  MutexLock lock(mutex_);
  return lost_;
}

}  // namespace dws::cuda
