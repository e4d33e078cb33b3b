#include "tests/fakes/cuda/device_memory.h"

#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/check.h"
#include "common/memory/cuda/cuda_driver.h"
#include "common/memory/cuda/kernel_image.h"
#include "common/memory/region_handle.h"

namespace dws::cuda {
namespace {

CudaDevicePtr Open(size_t index) {
  Result<CudaDriverPtr> driver = CudaDriver::Load();
  if (!driver.ok()) return nullptr;
  const auto uuids = (*driver)->DeviceUuids();
  DWS_CHECK(uuids.ok() && !uuids->empty());
  if (index >= uuids->size()) return nullptr;
  Result<CudaDevicePtr> device = CudaDevice::Open(*driver, (*uuids)[index], KernelImage());
  DWS_CHECK(device.ok());
  return *std::move(device);
}

}  // namespace

CudaDevicePtr TestDevice() {
  static const CudaDevicePtr device = Open(0);
  return device;
}

CudaDevicePtr SecondDevice() {
  static const CudaDevicePtr device = Open(1);
  return device;
}

CudaRegion MakeRegion(const CudaDevicePtr& device, uint64_t size_bytes) {
  const DriverApi& api = device->driver().api();
  const auto check = [&](DriverResult result) { DWS_CHECK(result == DriverResult::kSuccess); };
  DWS_CHECK(device->Enter().ok());
  const MemAllocationProperties properties = {
      .type = AllocationType::kPinned,
      .handle_types = HandleType::kDescriptor,
      .location = {.type = LocationType::kDevice, .id = device->ordinal()}};
  size_t granularity = 0;
  check(api.allocation_granularity(&granularity, &properties, Granularity::kMinimum));
  const uint64_t size = CeilDiv(size_bytes, granularity) * granularity;
  uint64_t chunk = 0;
  int descriptor = -1;
  check(api.chunk_create(&chunk, size, &properties, 0));
  check(api.chunk_export(&descriptor, chunk, HandleType::kDescriptor, 0));
  check(api.chunk_release(chunk));  // the descriptor keeps it
  std::vector<UniqueFd> descriptors;
  descriptors.emplace_back(descriptor);
  const RegionHandle handle{
      .size_bytes = size,
      .cuda = CudaRegionHandle{
          .device_uuid = device->uuid(),
          .chunks = {{.kind = CudaChunkHandle::Kind::kDescriptor, .size_bytes = size}}}};
  Result<CudaRegion> region = CudaRegion::Import(device, handle, std::move(descriptors));
  DWS_CHECK(region.ok());
  const Result<CudaStream> stream = device->CreateStream();
  DWS_CHECK(stream.ok());
  DWS_CHECK(stream->Zero(region->address(), size).ok() && stream->Synchronize().ok());
  return *std::move(region);
}

}  // namespace dws::cuda
