// A delta object, or a part of one, in a spool: its manifest, and the places of its frames.
#pragma once

#include <vector>

#include "common/base/status.h"
#include "common/delta/objects/object_part.h"
#include "common/model/delta_manifest.h"
#include "common/model/layout.h"
#include "common/spool/spool.h"
#include "common/spool/spooled_frame.h"

namespace dws {

// A plain value; its frames refer to bytes of the spool by offset.
struct FetchedObject {
  DeltaManifest manifest;
  std::vector<SpooledFrame> frames;  // of the selected slices, in the manifest's order
  uint64_t frames_begin = 0;         // where they begin: after header and manifest
};

// The spool has the object, or its part with the frames of `slices`; the size tells which. Does not
// check the frames' content. DATA_LOSS: not a delta object, or damaged. FAILED_PRECONDITION: made
// for another layout. UNIMPLEMENTED: a format that is not supported. Other errors as Spool::Read.
Result<FetchedObject> ParseObject(const Spool& spool, const RankLayout& layout,
                                  const SliceSelection& slices = std::nullopt);

// Returns the frames of the part of an object with these slices, in its order, with their places in
// that part. `frames_begin`: after header and manifest.
std::vector<SpooledFrame> PartFrames(const DeltaManifest& manifest, const SliceSelection& slices,
                                     uint64_t frames_begin);

}  // namespace dws
