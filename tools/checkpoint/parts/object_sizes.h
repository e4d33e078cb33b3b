// The sizes of the delta objects of a difference, which is really encoded: a formula would not
// match.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "tools/checkpoint/parts/block_source.h"
#include "tools/checkpoint/parts/block_walk.h"
#include "tools/checkpoint/parts/encode.h"

namespace dws::checkpoint {

struct ObjectSizes {
  std::vector<SliceChange> changes;  // by rank slice
  uint64_t fast_bytes = 0;           // a whole object of profile fast
  uint64_t wan_bytes = 0;            // the same with profile wan
};

// `step`: as EncodeDifference. Errors: of source and progress.
Result<ObjectSizes> MeasureObjects(const Walk& walk, std::string_view step, BlockSource& source);

}  // namespace dws::checkpoint
