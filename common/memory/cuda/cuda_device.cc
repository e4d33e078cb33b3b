#include "common/memory/cuda/cuda_device.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace dws::cuda {
namespace {

std::string JoinOr(const std::vector<std::string>& texts, const char* none) {
  std::string joined;
  for (const std::string& text : texts) joined += (joined.empty() ? "" : ", ") + text;
  return joined.empty() ? none : joined;
}

Result<int> FindOrdinal(const CudaDriver& driver, std::string_view uuid) {
  if (uuid.starts_with("MIG-")) {
    return UnimplementedError(
        "device {} is a MIG instance, which is not supported: use a whole GPU", uuid);
  }
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> uuids, driver.DeviceUuids());
  const auto found = std::find(uuids.begin(), uuids.end(), uuid);
  if (found == uuids.end()) {
    return NotFoundError(
        "expected the CUDA device {}, this process sees {}: look at CUDA_VISIBLE_DEVICES of both "
        "processes, and at the devices passed into the container",
        uuid, JoinOr(uuids, "none"));
  }
  return static_cast<int>(found - uuids.begin());
}

}  // namespace

Result<CudaDevicePtr> CudaDevice::Open(CudaDriverPtr driver, std::string_view uuid,
                                       ByteSpan image) {
  if (image.empty()) {
    return UnimplementedError(
        "this program has no CUDA kernels: use one that was built with --config=cuda");
  }
  DWS_ASSIGN_OR_RETURN(const int ordinal, FindOrdinal(*driver, uuid));
  const std::shared_ptr<CudaDevice> device(new CudaDevice);
  device->driver_ = std::move(driver);
  device->ordinal_ = ordinal;
  device->uuid_ = uuid;
  const CudaDriver& d = *device->driver_;
  DWS_RETURN_IF_ERROR(d.Check(d.api().device_get(&device->device_, ordinal), "cuDeviceGet"));

  char name[256] = {};
  DWS_RETURN_IF_ERROR(
      d.Check(d.api().device_get_name(name, sizeof(name) - 1, device->device_), "cuDeviceGetName"));
  device->name_ = name;
  // Reached when a client gives a MIG instance's UUID in the form of a GPU's.
  if (device->name_.find(" MIG ") != std::string::npos) {
    return UnimplementedError(
        "device {} ({}) is a MIG instance, which is not supported: use a "
        "whole GPU",
        uuid, device->name_);
  }
  int multiprocessors = 0;
  DWS_RETURN_IF_ERROR(
      d.Check(d.api().device_get_attribute(&multiprocessors, DeviceAttribute::kMultiprocessorCount,
                                           device->device_),
              "cuDeviceGetAttribute"));
  device->multiprocessors_ = static_cast<uint32_t>(std::max(multiprocessors, 1));
  DWS_RETURN_IF_ERROR(d.Check(d.api().primary_context_retain(&device->context_, device->device_),
                              "cuDevicePrimaryCtxRetain"));
  DWS_RETURN_IF_ERROR(device->LoadKernels(image));
  return CudaDevicePtr(device);
}

Status CudaDevice::LoadKernels(ByteSpan image) {
  DWS_RETURN_IF_ERROR(Enter());
  if (const Status loaded = driver_->Check(driver_->api().module_load_data(&module_, image.data()),
                                           "cuModuleLoadData");
      !loaded.ok()) {
    module_ = nullptr;
    return Annotate(loaded, fmt::format("cannot load the kernels on {} ({}, driver of CUDA {}.{}); "
                                        "they need compute capability 8.0 or later and driver 580 "
                                        "or later",
                                        uuid_, name_, driver_->version() / 1000,
                                        driver_->version() % 1000 / 10));
  }
  for (uint32_t k = 0; k < kKernelCount; ++k) {
    DWS_RETURN_IF_ERROR(Annotate(
        driver_->Check(driver_->api().module_get_function(&kernels_[k], module_, kKernelNames[k]),
                       "cuModuleGetFunction"),
        kKernelNames[k]));
  }
  return OkStatus();
}

CudaDevice::~CudaDevice() {
  // Errors here and in the destructors below are ignored: no caller could handle them, and they
  // mean that the driver is ending.
  if (context_ == nullptr) return;
  void* before = nullptr;
  (void)driver_->api().context_get_current(&before);
  if (module_ != nullptr && Enter().ok()) (void)driver_->api().module_unload(module_);
  (void)driver_->api().context_set_current(before == context_ ? nullptr : before);
  (void)driver_->api().primary_context_release(device_);
}

Status CudaDevice::Enter() const {
  return driver_->Check(driver_->api().context_set_current(context_), "cuCtxSetCurrent");
}

Result<uint64_t> CudaDevice::FreeBytes() const {
  DWS_RETURN_IF_ERROR(Enter());
  size_t free = 0;
  size_t total = 0;
  DWS_RETURN_IF_ERROR(driver_->Check(driver_->api().mem_get_info(&free, &total), "cuMemGetInfo"));
  return free;
}

Result<CudaBuffer> CudaDevice::Allocate(uint64_t size_bytes) const {
  CudaBuffer buffer;
  if (size_bytes == 0) return buffer;
  DWS_RETURN_IF_ERROR(Enter());
  uint64_t address = 0;
  const Status allocated =
      driver_->Check(driver_->api().mem_alloc(&address, size_bytes), "cuMemAlloc");
  if (!allocated.ok()) return OutOf(allocated, size_bytes);
  buffer.device_ = shared_from_this();
  buffer.address_ = address;
  buffer.size_bytes_ = size_bytes;
  return buffer;
}

Status CudaDevice::OutOf(const Status& error, uint64_t size_bytes) const {
  const Result<uint64_t> free = FreeBytes();
  return Annotate(error,
                  fmt::format("expected {} bytes of memory on {}, {} are free", size_bytes, uuid_,
                              free.ok() ? fmt::to_string(*free) : "an unknown number"));
}

bool CudaDevice::Has(DeviceAttribute attribute) const {
  int value = 0;
  return driver_->api().device_get_attribute(&value, attribute, device_) ==
             DriverResult::kSuccess &&
         value != 0;
}

Result<CudaBuffer> CudaDevice::AllocateToLend(uint64_t size_bytes) const {
  if (size_bytes == 0) return CudaBuffer();
  DWS_RETURN_IF_ERROR(Enter());
  if (Has(DeviceAttribute::kMemoryManagement) && Has(DeviceAttribute::kDescriptorHandles)) {
    DWS_ASSIGN_OR_RETURN(CudaBuffer buffer, MapChunk(size_bytes));
    if (buffer.size_bytes() > 0) return buffer;
  }
  return Allocate(size_bytes);
}

Result<CudaBuffer> CudaDevice::MapChunk(uint64_t size_bytes) const {
  const DriverApi& api = driver_->api();
  const MemLocation here = {.type = LocationType::kDevice, .id = ordinal_};
  const MemAllocationProperties properties = {
      .type = AllocationType::kPinned, .handle_types = HandleType::kDescriptor, .location = here};
  size_t granularity = 0;
  DWS_RETURN_IF_ERROR(driver_->Check(
      api.allocation_granularity(&granularity, &properties, Granularity::kRecommended),
      "cuMemGetAllocationGranularity"));
  if (granularity == 0) return InternalError("device {} has granules of 0 bytes", uuid_);
  const uint64_t mapped_bytes = CeilDiv(size_bytes, granularity) * granularity;
  uint64_t chunk = 0;
  const DriverResult created = api.chunk_create(&chunk, mapped_bytes, &properties, 0);
  if (created == DriverResult::kNotSupported || created == DriverResult::kNotPermitted) {
    return CudaBuffer();
  }
  if (created != DriverResult::kSuccess) {
    return OutOf(driver_->Check(created, "cuMemCreate"), mapped_bytes);
  }
  CudaBuffer buffer;
  Status mapped =
      driver_->Check(api.address_reserve(&buffer.address_, mapped_bytes, granularity, 0, 0),
                     "cuMemAddressReserve");
  if (mapped.ok()) {
    buffer.kind_ = CudaBuffer::Kind::kMapped;
    buffer.device_ = shared_from_this();
    buffer.size_bytes_ = size_bytes;
    buffer.mapped_bytes_ = mapped_bytes;
    mapped = driver_->Check(api.chunk_map(buffer.address_, mapped_bytes, 0, chunk, 0), "cuMemMap");
  }
  (void)api.chunk_release(chunk);  // the mapping keeps it
  if (mapped.ok()) {
    const MemAccess access = {.location = here, .flags = AccessFlags::kReadWrite};
    mapped =
        driver_->Check(api.set_access(buffer.address_, mapped_bytes, &access, 1), "cuMemSetAccess");
  }
  if (!mapped.ok()) return mapped;
  return buffer;
}

Result<CudaBuffer> CudaDevice::AllocatePinned(uint64_t size_bytes) const {
  CudaBuffer buffer;
  if (size_bytes == 0) return buffer;
  DWS_RETURN_IF_ERROR(Enter());
  void* host = nullptr;
  DWS_RETURN_IF_ERROR(Annotate(
      driver_->Check(
          driver_->api().host_alloc(&host, size_bytes, kHostAllocPortable | kHostAllocDeviceMap),
          "cuMemHostAlloc"),
      fmt::format("cannot allocate {} bytes of page-locked memory", size_bytes)));
  buffer.kind_ = CudaBuffer::Kind::kPinned;
  buffer.device_ = shared_from_this();
  buffer.host_ = static_cast<std::byte*>(host);
  buffer.size_bytes_ = size_bytes;
  DWS_RETURN_IF_ERROR(
      driver_->Check(driver_->api().host_get_device_pointer(&buffer.address_, host, 0),
                     "cuMemHostGetDevicePointer"));
  return buffer;
}

Result<CudaBuffer> CudaDevice::Pin(MutableByteSpan host) const {
  CudaBuffer buffer;
  if (host.empty()) return buffer;
  DWS_RETURN_IF_ERROR(Enter());
  const DriverResult registered = driver_->api().host_register(
      host.data(), host.size(), kHostRegisterPortable | kHostRegisterDeviceMap);
  const bool shared = registered == DriverResult::kHostMemoryAlreadyRegistered;
  if (!shared) {
    DWS_RETURN_IF_ERROR(Annotate(driver_->Check(registered, "cuMemHostRegister"),
                                 fmt::format("cannot page-lock {} bytes at {}", host.size(),
                                             static_cast<const void*>(host.data()))));
  }
  buffer.kind_ = shared ? CudaBuffer::Kind::kShared : CudaBuffer::Kind::kBorrowed;
  buffer.device_ = shared_from_this();
  buffer.host_ = host.data();
  buffer.size_bytes_ = host.size();
  DWS_RETURN_IF_ERROR(
      driver_->Check(driver_->api().host_get_device_pointer(&buffer.address_, host.data(), 0),
                     "cuMemHostGetDevicePointer"));
  return buffer;
}

CudaBuffer::CudaBuffer(CudaBuffer&& other) noexcept
    : kind_(other.kind_),
      device_(std::move(other.device_)),
      address_(std::exchange(other.address_, 0)),
      host_(std::exchange(other.host_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)) {}

CudaBuffer& CudaBuffer::operator=(CudaBuffer&& other) noexcept {
  CudaBuffer taken(std::move(other));
  std::swap(kind_, taken.kind_);
  std::swap(device_, taken.device_);
  std::swap(address_, taken.address_);
  std::swap(host_, taken.host_);
  std::swap(size_bytes_, taken.size_bytes_);
  std::swap(mapped_bytes_, taken.mapped_bytes_);
  return *this;
}

CudaBuffer::~CudaBuffer() {
  if (device_ == nullptr || !device_->Enter().ok()) return;
  const DriverApi& api = device_->driver().api();
  switch (kind_) {
    case Kind::kDevice:
      (void)api.mem_free(address_);
      break;
    case Kind::kMapped:
      (void)api.chunk_unmap(address_, mapped_bytes_);
      (void)api.address_free(address_, mapped_bytes_);
      break;
    case Kind::kPinned:
      (void)api.host_free(host_);
      break;
    case Kind::kBorrowed:
      (void)api.host_unregister(host_);
      break;
    case Kind::kShared:
      break;
  }
}

MutableByteSpan CudaBuffer::host_bytes() const {
  return host_ == nullptr ? MutableByteSpan() : MutableByteSpan(host_, size_bytes_);
}

Result<CudaStream> CudaDevice::CreateStream() const {
  DWS_RETURN_IF_ERROR(Enter());
  CudaStream stream;
  stream.device_ = shared_from_this();
  DWS_RETURN_IF_ERROR(
      driver_->Check(driver_->api().stream_create(&stream.stream_, kStreamNonBlocking, 0),
                     "cuStreamCreateWithPriority"));
  return stream;
}

}  // namespace dws::cuda
