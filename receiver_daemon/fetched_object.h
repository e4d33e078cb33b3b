// A delta object that lies in a spool: its manifest, read and checked against what was asked for,
// and where its frames are.
#pragma once

#include <vector>

#include "common/base/status.h"
#include "common/model/delta_manifest.h"
#include "common/model/layout.h"
#include "common/sync_state/subscription_state.h"
#include "receiver_daemon/spool.h"
#include "receiver_daemon/staging.h"

namespace dws {

struct FetchedObject {
  DeltaManifest manifest;
  std::vector<SpooledFrame> frames;  // all, in the manifest's order
};

// DATA_LOSS: not a delta object of this layout, or damaged. The frames' content is not checked.
Result<FetchedObject> ParseObject(const Spool& spool, const RankLayout& layout);

// DATA_LOSS: not `base` -> target.version of `rank`.
Status CheckManifest(const DeltaManifest& manifest, const SyncTarget& target, TrainerRank rank,
                     WeightVersion base);

}  // namespace dws
