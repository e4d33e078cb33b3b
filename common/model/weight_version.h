// The numbers of docs/protocol.md, 1. Weight versions increase strictly inside one stream, from 1.
// Zero never names a version; absence is std::optional.
#pragma once

#include <cstdint>

#include "common/base/strong_type.h"

namespace dws {

using WeightVersion = StrongType<struct WeightVersionTag, uint64_t>;
using RankEpoch = StrongType<struct RankEpochTag, uint64_t>;
using Generation = StrongType<struct GenerationTag, uint64_t>;
using TrainerRank = StrongType<struct TrainerRankTag, uint32_t>;

}  // namespace dws
