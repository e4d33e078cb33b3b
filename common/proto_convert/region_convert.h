// Converts memory that is handed over, between message and values.
#pragma once

#include <google/protobuf/repeated_ptr_field.h>

#include <vector>

#include "common/base/status.h"
#include "common/memory/region_handle.h"
#include "proto/memory.pb.h"

namespace dws {

// INVALID_ARGUMENT, with the region's number: none, or more than limits::kRegionsMax or
// kCudaChunksMax; sizes out of bounds, or chunks that do not add up to their region; a handle of
// another length than the driver's.
Result<std::vector<RegionHandle>> FromProto(
    const google::protobuf::RepeatedPtrField<v1::Region>& regions);

v1::Region ToProto(const RegionHandle& region);

}  // namespace dws
