// Squash: composes several consecutive deltas into one, from their steps alone. It needs no weights
// and is exact: steps of consecutive versions add up.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/delta/objects/delta_link.h"
#include "common/model/layout.h"

namespace dws {

// The object from the base of the first of `chain` to the version of the last. Each version is the
// base of the next delta (CHECK), and all are of `layout`. DATA_LOSS: a delta is damaged, does not
// begin with the weights that the deltas before it end with, or has blocks that cannot be composed
// (raw, dense raw, dense zstd or class-split). Other errors are those of a link's `frame`.
Result<std::vector<std::byte>> Squash(const RankLayout& layout, std::span<const DeltaLink> chain);

}  // namespace dws
