// The regions that a trainer or an engine rank hands over, from handles and descriptors to mapped
// memory.
#pragma once

#include <span>
#include <variant>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/memory/cuda/cuda_devices.h"
#include "common/memory/cuda/cuda_region.h"
#include "common/memory/host/host_region.h"
#include "common/memory/region_handle.h"

namespace dws {

using MappedRegion = std::variant<HostRegion, cuda::CudaRegion>;

// Maps `regions`; host memory for `access`, device memory is always mapped for both. `descriptors`
// are all of theirs, in order; they are closed in any case. `devices` may be null: then there is
// host memory only. INVALID_ARGUMENT: another number of descriptors, or what HostRegion::Map and
// CudaRegion::Import refuse, by the region's number; their other errors too.
Result<std::vector<MappedRegion>> ImportRegions(std::span<const RegionHandle> regions,
                                                std::vector<UniqueFd> descriptors, Access access,
                                                cuda::CudaDevices* devices);

}  // namespace dws
