// What a rank declares when it joins training on demand, checked against what it has registered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/memory/gradients/accumulators.h"
#include "common/model/digest/digest.h"
#include "common/model/layout.h"
#include "proto/on_demand.pb.h"
#include "sender_daemon/on_demand/gather/unit_plan.h"

namespace dws {

// A plain value.
struct JoinOrder {
  uint64_t session = 0;
  std::vector<UnitSpec> units;
  std::vector<GradientUnit> shards;  // of this rank, as `units`
  // By unit: the gradients that the rank pushes to each owner. Empty: as many as its own shard.
  std::vector<std::vector<uint64_t>> pushed;
  size_t prefetch = 0;
  bool exact = false;
  uint64_t arena_bytes = 0;
  uint64_t gradients_bytes = 0;
  uint64_t outbox_bytes = 0;
};

// INVALID_ARGUMENT, naming the unit: too many units, an arena with less room than the largest unit
// needs, as far as `layout` has its tensors, or a number that is out of range.
Result<JoinOrder> ParseJoin(const v1::JoinRequest& request, const RankLayout& layout);

// What all ranks have to have in common: names and tensors of the units, and the kind of the sums.
Digest CommonDigest(const JoinOrder& order);

}  // namespace dws
