// Says which units come next: in the order of the first microbatch. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "sender_daemon/on_demand/gather/unit_at.h"

namespace dws {

// Lifecycle: one for each rank. Threads: one at a time.
class PrefetchOrder {
 public:
  // A microbatch begins. The units of the first one that asks for any are the order from then on.
  void Begin();
  // The rank asks for `unit`. Returns at most `count` units that follow it in the order, the next
  // one first; none in the first microbatch, or if the unit does not follow in the order.
  std::vector<UnitIndex> Next(UnitIndex unit, size_t count);

 private:
  std::vector<UnitIndex> order_;
  bool recording_ = true;
  size_t position_ = 0;  // the unit that is expected next
};

}  // namespace dws
