// The fake driver: initialisation, errors, devices, contexts, modules.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/memory/cuda/kernels/entry/host_kernels.h"
#include "tests/fakes/cuda/fake_image.h"
#include "tests/fakes/cuda/fake_state.h"

namespace dws::cuda {
namespace {

std::unique_ptr<FakeDevice> MakeDevice(int number) {
  auto device = std::make_unique<FakeDevice>();
  device->number = number;
  const unsigned char start[] = {0xfa, 0x4e, 0xc0, 0xda, 0x00, 0x00, 0x40, 0x00, 0x80};
  std::copy(std::begin(start), std::end(start), device->uuid.bytes);
  device->uuid.bytes[15] = static_cast<unsigned char>(number);
  device->capacity =
      std::strtoull(Variable("DWS_FAKE_CUDA_MEMORY", "8589934592").c_str(), nullptr, 10);
  device->default_pool.device = number;
  return device;
}

std::string UuidText(const DeviceUuid& uuid) {
  std::string text = "GPU";
  for (size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    char digits[4];
    std::snprintf(digits, sizeof(digits), "%02x", uuid.bytes[i]);
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

// The devices of the machine that CUDA_VISIBLE_DEVICES names, in its order; like the driver's, the
// list ends at the first invalid entry.
void MakeDevices(State& state) {
  const int count = std::atoi(Variable("DWS_FAKE_CUDA_DEVICES", "2").c_str());
  std::vector<std::unique_ptr<FakeDevice>> machine;
  for (int number = 0; number < count; ++number) machine.push_back(MakeDevice(number));
  if (std::getenv("CUDA_VISIBLE_DEVICES") == nullptr) {
    state.devices = std::move(machine);
    return;
  }
  const std::string visible = Variable("CUDA_VISIBLE_DEVICES", "") + ",";
  for (size_t at = 0; at < visible.size();) {
    const size_t end = visible.find(',', at);
    const std::string entry = visible.substr(at, end - at);
    at = end + 1;
    const auto found = std::find_if(machine.begin(), machine.end(), [&](const auto& device) {
      return device != nullptr && !entry.empty() &&
             (entry == std::to_string(device->number) || UuidText(device->uuid).starts_with(entry));
    });
    if (found == machine.end()) return;
    state.devices.push_back(std::move(*found));
  }
}

struct ErrorText {
  DriverResult result;
  const char* name;
  const char* text;
};

constexpr ErrorText kErrors[] = {
    {DriverResult::kSuccess, "CUDA_SUCCESS", "no error"},
    {DriverResult::kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {DriverResult::kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {DriverResult::kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {DriverResult::kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {DriverResult::kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {DriverResult::kInvalidImage, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {DriverResult::kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {DriverResult::kMapFailed, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {DriverResult::kAlreadyMapped, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    {DriverResult::kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {DriverResult::kNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {DriverResult::kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access"},
    {DriverResult::kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {DriverResult::kHostMemoryAlreadyRegistered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {DriverResult::kHostMemoryNotRegistered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {DriverResult::kMisalignedAddress, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {DriverResult::kNotPermitted, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {DriverResult::kNotSupported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

const ErrorText* FindError(DriverResult error) {
  for (const ErrorText& known : kErrors) {
    if (known.result == error) return &known;
  }
  return nullptr;
}

FakeDevice* DeviceAt(int ordinal) {
  State& state = TheState();
  return ordinal >= 0 && static_cast<size_t>(ordinal) < state.devices.size()
             ? state.devices[static_cast<size_t>(ordinal)].get()
             : nullptr;
}

}  // namespace

DriverResult cuInit(unsigned flags) {
  FAKE_CUDA_CALL(kNothing);
  if (flags != 0) return DriverResult::kInvalidValue;
  State& state = TheState();
  if (!state.initialised) MakeDevices(state);
  state.initialised = !state.devices.empty();
  return state.initialised ? DriverResult::kSuccess : DriverResult::kNoDevice;
}

DriverResult cuDriverGetVersion(int* version) {
  FAKE_CUDA_CALL(kNothing);
  *version = kFakeVersion;
  return DriverResult::kSuccess;
}

DriverResult cuGetErrorName(DriverResult error, const char** name) {
  const ErrorText* const known = FindError(error);
  *name = known != nullptr ? known->name : nullptr;
  return known != nullptr ? DriverResult::kSuccess : DriverResult::kInvalidValue;
}

DriverResult cuGetErrorString(DriverResult error, const char** text) {
  const ErrorText* const known = FindError(error);
  *text = known != nullptr ? known->text : nullptr;
  return known != nullptr ? DriverResult::kSuccess : DriverResult::kInvalidValue;
}

DriverResult cuDeviceGetCount(int* count) {
  FAKE_CUDA_CALL(kInit);
  *count = static_cast<int>(TheState().devices.size());
  return DriverResult::kSuccess;
}

DriverResult cuDeviceGet(int* device, int ordinal) {
  FAKE_CUDA_CALL(kInit);
  if (DeviceAt(ordinal) == nullptr) return DriverResult::kInvalidDevice;
  *device = ordinal;
  return DriverResult::kSuccess;
}

DriverResult cuDeviceGetName(char* name, int size, int device) {
  FAKE_CUDA_CALL(kInit);
  if (DeviceAt(device) == nullptr) return DriverResult::kInvalidDevice;
  std::snprintf(name, static_cast<size_t>(size), "%s",
                Variable("DWS_FAKE_CUDA_NAME", "Fake GPU").c_str());
  return DriverResult::kSuccess;
}

DriverResult cuDeviceGetUuid_v2(DeviceUuid* uuid, int device) {
  FAKE_CUDA_CALL(kInit);
  if (DeviceAt(device) == nullptr) return DriverResult::kInvalidDevice;
  *uuid = DeviceAt(device)->uuid;
  return DriverResult::kSuccess;
}

DriverResult cuDeviceGetAttribute(int* value, DeviceAttribute attribute, int device) {
  FAKE_CUDA_CALL(kInit);
  if (DeviceAt(device) == nullptr) return DriverResult::kInvalidDevice;
  switch (attribute) {
    case DeviceAttribute::kMultiprocessorCount:
      *value = 2;
      return DriverResult::kSuccess;
    case DeviceAttribute::kComputeCapabilityMajor:
      *value = 9;
      return DriverResult::kSuccess;
    case DeviceAttribute::kComputeCapabilityMinor:
      *value = 0;
      return DriverResult::kSuccess;
    case DeviceAttribute::kDescriptorHandles:
      *value = Variable("DWS_FAKE_CUDA_DESCRIPTORS", "1") == "1" ? 1 : 0;
      return DriverResult::kSuccess;
    case DeviceAttribute::kMemoryManagement:
    case DeviceAttribute::kMemoryPools:
      *value = 1;
      return DriverResult::kSuccess;
    case DeviceAttribute::kFabricHandles:
      *value = Variable("DWS_FAKE_CUDA_FABRIC", "0") == "1" ? 1 : 0;
      return DriverResult::kSuccess;
  }
  return DriverResult::kInvalidValue;
}

DriverResult cuDevicePrimaryCtxRetain(void** context, int device) {
  FAKE_CUDA_CALL(kInit);
  FakeDevice* const found = DeviceAt(device);
  if (found == nullptr) return DriverResult::kInvalidDevice;
  ++found->context_references;
  *context = found;
  return DriverResult::kSuccess;
}

DriverResult cuDevicePrimaryCtxRelease_v2(int device) {
  FAKE_CUDA_CALL(kInit);
  FakeDevice* const found = DeviceAt(device);
  if (found == nullptr) return DriverResult::kInvalidDevice;
  if (found->context_references == 0) return DriverResult::kInvalidContext;
  --found->context_references;
  return DriverResult::kSuccess;
}

DriverResult cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  FAKE_CUDA_CALL(kInit);
  FakeDevice* const found = DeviceAt(device);
  if (found == nullptr) return DriverResult::kInvalidDevice;
  *flags = 0;
  *active = found->context_references > 0 ? 1 : 0;
  return DriverResult::kSuccess;
}

DriverResult cuCtxSetCurrent(void* context) {
  FAKE_CUDA_CALL(kInit);
  auto* const device = static_cast<FakeDevice*>(context);
  if (device != nullptr && device->context_references == 0) return DriverResult::kInvalidContext;
  SetCurrentDevice(device);
  return DriverResult::kSuccess;
}

DriverResult cuCtxGetCurrent(void** context) {
  FAKE_CUDA_CALL(kInit);
  *context = CurrentDevice();
  return DriverResult::kSuccess;
}

DriverResult cuModuleLoadData(void** module, const void* image) {
  FAKE_CUDA_CALL(kContext);
  if (image == nullptr) return DriverResult::kInvalidValue;
  uint64_t magic = 0;
  uint32_t short_magic = 0;
  std::memcpy(&short_magic, image, sizeof(short_magic));
  if (short_magic != kFatBinaryMagic) {
    std::memcpy(&magic, image, sizeof(magic));
    if (magic != kHostImageMagic) return DriverResult::kInvalidImage;
  }
  auto loaded = std::make_unique<FakeModule>(FakeModule{.device = CurrentDevice()});
  *module = loaded.get();
  TheState().modules[*module] = std::move(loaded);
  return DriverResult::kSuccess;
}

DriverResult cuModuleUnload(void* module) {
  FAKE_CUDA_CALL(kContext);
  State& state = TheState();
  if (state.modules.count(module) == 0) return DriverResult::kInvalidHandle;
  std::erase_if(state.functions, [&](const auto& entry) { return entry.second.module == module; });
  state.modules.erase(module);
  return DriverResult::kSuccess;
}

DriverResult cuModuleGetFunction(void** function, void* module, const char* name) {
  FAKE_CUDA_CALL(kContext);
  State& state = TheState();
  const auto found = state.modules.find(module);
  if (found == state.modules.end()) return DriverResult::kInvalidHandle;
  const std::optional<Kernel> kernel = FindKernel(name);
  if (!kernel.has_value()) return DriverResult::kNotFound;
  *function = static_cast<char*>(module) + 1 + static_cast<int>(*kernel);
  state.functions[*function] = {.module = found->second.get(), .kernel = *kernel};
  return DriverResult::kSuccess;
}

}  // namespace dws::cuda
