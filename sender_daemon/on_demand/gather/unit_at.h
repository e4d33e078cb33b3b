// Names one unit at one version.
#pragma once

#include "common/model/unit_index.h"
#include "common/sync_state/live_state.h"

namespace dws {

// A plain value.
struct UnitAt {
  UnitIndex unit;
  VersionAt at;

  friend bool operator==(const UnitAt&, const UnitAt&) = default;
};

}  // namespace dws
