// Shows the fields of a manifest in the order of its bytes: protobuf's encoding, read with
// protobuf's reader and the names of proto/delta.proto.
#pragma once

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "tools/dwsctl/inspect/inspect_item.h"

namespace dws::dwsctl {

// Passes the fields of a dws.v1.DeltaManifest to `sink`, but only the first slices and frames.
// Stops where the bytes are not a valid message. Returns the number of valid bytes, which is all of
// them if the manifest is sound.
uint64_t InspectManifest(ByteSpan manifest, const InspectLimits& limits, const InspectSink& sink);

}  // namespace dws::dwsctl
