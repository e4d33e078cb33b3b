// Turns blocks of a newer version back into those of an older one, by the delta between the two.
// So the snapshot of a trainer that goes on still gives the older version.
#pragma once

#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/model/layout.h"
#include "common/model/weight_version.h"
#include "common/spool/full_assembly.h"
#include "common/spool/spool.h"
#include "common/sync_state/live_state.h"

namespace dws {

// The slices of `blocks`, ascending.
std::vector<RankSlice> SlicesOf(std::span<const NewerBlock> blocks);

// `object`: a delta object, or its part with SlicesOf(blocks), of `rank` from the `wanted` version
// to `at`, which has changed all of these blocks last; they ascend by slice and block. On return
// they are as in the wanted version; the caller proves that. FAILED_PRECONDITION: the delta cannot
// be undone. DATA_LOSS: it is damaged, or another one. After an error the blocks are of no use.
Status TurnBack(const RankLayout& layout, const Spool& object, const VersionAt& at,
                TrainerRank rank, WeightVersion wanted, std::span<NewerBlock> blocks);

}  // namespace dws
