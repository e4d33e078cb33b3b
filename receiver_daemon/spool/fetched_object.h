// A delta object that lies in a spool: its manifest, and where its frames are.
#pragma once

#include <vector>

#include "common/base/status.h"
#include "common/model/delta_manifest.h"
#include "common/model/layout.h"
#include "receiver_daemon/spool/spool.h"
#include "receiver_daemon/spool/spooled_frame.h"

namespace dws {

struct FetchedObject {
  DeltaManifest manifest;
  std::vector<SpooledFrame> frames;  // all, in the manifest's order
};

// DATA_LOSS: not a delta object of this layout, or damaged. The frames' content is not checked.
Result<FetchedObject> ParseObject(const Spool& spool, const RankLayout& layout);

}  // namespace dws
