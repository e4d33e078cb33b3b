#include "common/memory/cuda/ipc/region_import.h"

#include <iterator>
#include <utility>

namespace dws {
namespace {

Result<MappedRegion> ImportRegion(const RegionHandle& region, std::vector<UniqueFd> descriptors,
                                  Access access, cuda::CudaDevices* devices,
                                  cuda::CudaPoolPtr& pool) {
  if (!region.cuda.has_value()) {
    DWS_ASSIGN_OR_RETURN(HostRegion host, HostRegion::Map(std::move(descriptors.front()),
                                                          region.size_bytes, access));
    return MappedRegion(std::move(host));
  }
  if (devices == nullptr) return UnimplementedError("memory of a GPU is not supported here");
  DWS_ASSIGN_OR_RETURN(cuda::CudaDevicePtr device, devices->Open(region.cuda->device_uuid));
  DWS_ASSIGN_OR_RETURN(
      cuda::CudaRegion imported,
      cuda::CudaRegion::Import(std::move(device), region, std::move(descriptors), &pool));
  // Offsets are counted from this address. Drivers align allocations to more than 8 bytes, but the
  // client chooses a pool's pointer.
  if (imported.address() % sizeof(uint64_t) != 0) {
    return InvalidArgumentError(
        "its memory begins at address {:#x}: expected a multiple of {} bytes", imported.address(),
        sizeof(uint64_t));
  }
  return MappedRegion(std::move(imported));
}

}  // namespace

Result<std::vector<MappedRegion>> ImportRegions(std::span<const RegionHandle> regions,
                                                std::vector<UniqueFd> descriptors, Access access,
                                                cuda::CudaDevices* devices) {
  const size_t expected = DescriptorCount(regions);
  if (descriptors.size() != expected) {
    return InvalidArgumentError("{} descriptors, expected {} for {} regions", descriptors.size(),
                                expected, regions.size());
  }
  std::vector<MappedRegion> imported;
  imported.reserve(regions.size());
  cuda::CudaPoolPtr pool;
  auto next = std::make_move_iterator(descriptors.begin());
  for (size_t i = 0; i < regions.size(); ++i) {
    const auto end = next + static_cast<ptrdiff_t>(regions[i].descriptor_count());
    Result<MappedRegion> region =
        ImportRegion(regions[i], std::vector<UniqueFd>(next, end), access, devices, pool);
    if (!region.ok()) return Annotate(region.status(), fmt::format("region {}", i));
    imported.push_back(*std::move(region));
    next = end;
  }
  return imported;
}

}  // namespace dws
