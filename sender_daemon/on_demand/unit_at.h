// Names one unit at one version.
#pragma once

#include <cstdint>

#include "common/base/strong_type.h"
#include "common/sync_state/live_state.h"

namespace dws {

// Numbers the units of a model from 0, in the order in which the gather was told of them.
using UnitIndex = StrongType<struct UnitIndexTag, uint32_t>;

// A plain value.
struct UnitAt {
  UnitIndex unit;
  VersionAt at;

  friend bool operator==(const UnitAt&, const UnitAt&) = default;
};

}  // namespace dws
