// A unit is asked for several times a microbatch (forward, backward), so a position is kept, and
// what was skipped stays behind it.
#include "sender_daemon/on_demand/gather/prefetch_order.h"

#include <algorithm>

#include "sender_daemon/on_demand/gather/limits.h"

namespace dws {

void PrefetchOrder::Begin() {
  recording_ = order_.empty();
  position_ = 0;
}

std::vector<UnitIndex> PrefetchOrder::Next(UnitIndex unit, size_t count) {
  if (recording_) {
    if (order_.size() < limits::kOrderMax) order_.push_back(unit);
    return {};
  }
  const auto found =
      std::find(order_.begin() + static_cast<ptrdiff_t>(position_), order_.end(), unit);
  if (found == order_.end()) return {};
  position_ = static_cast<size_t>(found - order_.begin()) + 1;
  const size_t end = std::min(order_.size(), position_ + count);
  return {order_.begin() + static_cast<ptrdiff_t>(position_),
          order_.begin() + static_cast<ptrdiff_t>(end)};
}

}  // namespace dws
