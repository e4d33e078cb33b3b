// Squash: several consecutive deltas as one, from their steps alone. No weights are needed, and it
// is exact: steps of consecutive versions add up.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/delta/objects/delta_link.h"
#include "common/model/layout.h"

namespace dws {

// The object from the base of the first of `chain` to the version of the last; each is the base of
// the next (CHECK), and all are of `layout`. DATA_LOSS: a delta is damaged, begins with other
// weights than those before it end with, or has blocks that do not compose (raw, dense or
// class-split ones). What a link's `frame` returns.
Result<std::vector<std::byte>> Squash(const RankLayout& layout, std::span<const DeltaLink> chain);

}  // namespace dws
