#include "tools/gpu_check/exporter/device_memory.h"

#include <algorithm>

#include "common/base/bytes.h"
#include "tools/gpu_check/exporter/exporter.h"

namespace dws::gpu_check {
namespace {

using cuda::CudaDevice;
using cuda::DriverApi;

cuda::MemLocation LocationOf(const CudaDevice& device) {
  return {.type = cuda::LocationType::kDevice, .id = device.ordinal()};
}

Result<uint64_t> AllocateChunks(const CudaDevice& device, uint64_t size_bytes,
                                uint64_t chunk_bytes) {
  const cuda::CudaDriver& driver = device.driver();
  const DriverApi& api = driver.api();
  const cuda::MemAllocationProperties properties = {.type = cuda::AllocationType::kPinned,
                                                    .handle_types = cuda::HandleType::kDescriptor,
                                                    .location = LocationOf(device)};
  size_t granularity = 0;
  DWS_RETURN_IF_ERROR(driver.Check(
      api.allocation_granularity(&granularity, &properties, cuda::Granularity::kMinimum),
      "cuMemGetAllocationGranularity"));
  const uint64_t whole = CeilDiv(size_bytes, granularity) * granularity;
  const uint64_t chunk =
      chunk_bytes == 0 ? whole : std::min(whole, CeilDiv(chunk_bytes, granularity) * granularity);
  uint64_t base = 0;
  DWS_RETURN_IF_ERROR(
      driver.Check(api.address_reserve(&base, whole, 0, 0, 0), "cuMemAddressReserve"));
  for (uint64_t at = 0; at < whole; at += chunk) {
    const uint64_t size = std::min(chunk, whole - at);
    uint64_t handle = 0;
    DWS_RETURN_IF_ERROR(
        driver.Check(api.chunk_create(&handle, size, &properties, 0), "cuMemCreate"));
    DWS_RETURN_IF_ERROR(driver.Check(api.chunk_map(base + at, size, 0, handle, 0), "cuMemMap"));
    // The mapping keeps the chunk.
    DWS_RETURN_IF_ERROR(driver.Check(api.chunk_release(handle), "cuMemRelease"));
  }
  const cuda::MemAccess access = {.location = LocationOf(device),
                                  .flags = cuda::AccessFlags::kReadWrite};
  DWS_RETURN_IF_ERROR(driver.Check(api.set_access(base, whole, &access, 1), "cuMemSetAccess"));
  return base;
}

Result<void*> CreatePool(const CudaDevice& device) {
  const cuda::MemPoolProperties properties = {.type = cuda::AllocationType::kPinned,
                                              .handle_types = cuda::HandleType::kDescriptor,
                                              .location = LocationOf(device)};
  void* pool = nullptr;
  DWS_RETURN_IF_ERROR(device.driver().Check(device.driver().api().pool_create(&pool, &properties),
                                            "cuMemPoolCreate"));
  return pool;
}

// Runs in the default stream and waits for it.
Result<uint64_t> AllocateFromPool(const CudaDevice& device, void* pool, uint64_t size_bytes) {
  const cuda::CudaDriver& driver = device.driver();
  uint64_t address = 0;
  const cuda::DriverResult result =
      pool != nullptr ? driver.api().alloc_from_pool_async(&address, size_bytes, pool, nullptr)
                      : driver.api().alloc_async(&address, size_bytes, nullptr);
  DWS_RETURN_IF_ERROR(driver.Check(result, "cuMemAllocAsync"));
  DWS_RETURN_IF_ERROR(
      driver.Check(driver.api().stream_synchronize(nullptr), "cuStreamSynchronize"));
  return address;
}

}  // namespace

Result<uint64_t> AllocateAs(const CudaDevice& device, std::string_view kind, uint64_t size_bytes,
                            uint64_t chunk_bytes) {
  if (kind == kLegacy) {
    uint64_t address = 0;
    DWS_RETURN_IF_ERROR(
        device.driver().Check(device.driver().api().mem_alloc(&address, size_bytes), "cuMemAlloc"));
    return address;
  }
  if (kind == kChunks) return AllocateChunks(device, size_bytes, chunk_bytes);
  if (kind == kDefaultPool) return AllocateFromPool(device, nullptr, size_bytes);
  if (kind != kPool) return InvalidArgumentError("unknown kind of device memory: '{}'", kind);
  DWS_ASSIGN_OR_RETURN(void* const pool, CreatePool(device));
  return AllocateFromPool(device, pool, size_bytes);
}

}  // namespace dws::gpu_check
