// Imports the regions that a trainer or an engine rank hands over: from handles and descriptors to
// mapped memory.
#pragma once

#include <span>
#include <variant>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/memory/cuda/cuda_devices.h"
#include "common/memory/cuda/ipc/cuda_region.h"
#include "common/memory/host/host_region.h"
#include "common/memory/region_handle.h"

namespace dws {

using MappedRegion = std::variant<HostRegion, cuda::CudaRegion>;

// Maps `regions`: host memory for `access`, device memory always for reading and writing.
// `descriptors` are those of all regions, in order; they are closed in any case. `devices` may be
// null: then device memory is UNIMPLEMENTED. INVALID_ARGUMENT: the number of descriptors is wrong.
// Errors of HostRegion::Map and CudaRegion::Import, with the region's number.
Result<std::vector<MappedRegion>> ImportRegions(std::span<const RegionHandle> regions,
                                                std::vector<UniqueFd> descriptors, Access access,
                                                cuda::CudaDevices* devices);

}  // namespace dws
