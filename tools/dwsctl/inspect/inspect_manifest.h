// The fields of a manifest as they stand in its bytes: protobuf's encoding, read with protobuf's
// own reader and the names of proto/delta.proto.
#pragma once

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "tools/dwsctl/inspect/inspect_item.h"

namespace dws::dwsctl {

// Hands the fields of a dws.v1.DeltaManifest to `sink`, of slices and frames only the first. Stops
// where the bytes are no message; returns where: all of them when they are sound.
uint64_t InspectManifest(ByteSpan manifest, const InspectLimits& limits, const InspectSink& sink);

}  // namespace dws::dwsctl
