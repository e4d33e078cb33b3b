// The fields of a manifest as they stand in its bytes: protobuf's encoding, read with protobuf's
// own reader and the names of proto/delta.proto.
#pragma once

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "tools/dwsctl/inspect_item.h"

namespace dws::dwsctl {

struct ManifestFields {
  uint64_t read_bytes = 0;  // up to where it can be read; all of it when it is sound
  bool wanted = true;       // the sink wanted more
};

// Hands the fields of a dws.v1.DeltaManifest to `sink`, of slices and frames only the first. Stops
// where the bytes are no message.
ManifestFields InspectManifest(ByteSpan manifest, const InspectLimits& limits,
                               const InspectSink& sink);

}  // namespace dws::dwsctl
