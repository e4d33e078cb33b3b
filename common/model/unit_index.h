// The units of a model that is trained on demand: what a trainer gathers, and computes with, at
// once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/strong_type.h"

namespace dws {

// Numbers the units of a model from 0, in the order in which the trainer names them.
using UnitIndex = StrongType<struct UnitIndexTag, uint32_t>;

namespace limits {

inline constexpr uint32_t kTrainRanksMax = 256;     // of a job that trains on demand
inline constexpr uint32_t kTrainUnitsMax = 65'536;  // of a model

}  // namespace limits

}  // namespace dws
