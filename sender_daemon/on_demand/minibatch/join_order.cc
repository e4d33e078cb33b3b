#include "sender_daemon/on_demand/minibatch/join_order.h"

#include <map>
#include <string>
#include <string_view>

#include "common/base/printable.h"
#include "common/model/limits.h"
#include "common/model/unit_index.h"
#include "sender_daemon/on_demand/gather/limits.h"

namespace dws {
namespace {

using Tensors = std::map<std::string_view, const TensorSpec*>;

Result<uint64_t> WholeBytes(const TensorSpec& tensor) {
  uint64_t bytes = ElementBytes(tensor.dtype);
  for (const uint64_t size : tensor.shape) {
    if (size > 0 && bytes > limits::kUnitBytesMax / size) {
      return InvalidArgumentError("tensor '{}' has more than {} bytes", tensor.name,
                                  limits::kUnitBytesMax);
    }
    bytes *= size;
  }
  return CeilDiv(bytes, limits::kUnitAlignment) * limits::kUnitAlignment;
}

// The bytes of what this rank has a part of.
Result<uint64_t> UnitBytes(const UnitSpec& unit, const Tensors& tensors) {
  uint64_t bytes = 0;
  for (const std::string& name : unit.tensors) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) continue;  // this rank owns no part of it, or nobody does
    DWS_ASSIGN_OR_RETURN(const uint64_t whole, WholeBytes(*found->second));
    if (bytes > limits::kUnitBytesMax - whole) {
      return InvalidArgumentError("unit '{}' has more than {} bytes", unit.name,
                                  limits::kUnitBytesMax);
    }
    bytes += whole;
  }
  return bytes;
}

Status CheckCounts(const v1::JoinRequest& request) {
  if (request.units().empty() || request.units_size() > static_cast<int>(limits::kTrainUnitsMax)) {
    return InvalidArgumentError("{} units, expected 1 to {}", request.units_size(),
                                limits::kTrainUnitsMax);
  }
  if (request.prefetch() > limits::kPrefetchMax) {
    return InvalidArgumentError("{} units are to be prefetched, at most {} are supported",
                                request.prefetch(), limits::kPrefetchMax);
  }
  if (request.gradients_bytes() <= limits::kRecordPageBytes) {
    return InvalidArgumentError("memory of {} bytes for gradients, expected more than {}",
                                request.gradients_bytes(), limits::kRecordPageBytes);
  }
  return OkStatus();
}

}  // namespace

Result<JoinOrder> ParseJoin(const v1::JoinRequest& request, const RankLayout& layout) {
  DWS_RETURN_IF_ERROR(CheckCounts(request));
  Tensors tensors;
  for (const Shard& shard : layout.shards()) tensors.emplace(shard.tensor.name, &shard.tensor);
  JoinOrder order{.session = request.session(),
                  .prefetch = request.prefetch(),
                  .exact = request.exact(),
                  .arena_bytes = request.arena_bytes(),
                  .gradients_bytes = request.gradients_bytes(),
                  .outbox_bytes = request.outbox_bytes()};
  for (const v1::TrainUnit& unit : request.units()) {
    if (unit.pushed_elements_size() > static_cast<int>(limits::kTrainRanksMax)) {
      return InvalidArgumentError("unit '{}' is pushed to {} owners, at most {} are supported",
                                  EscapeUnprintable(unit.name()), unit.pushed_elements_size(),
                                  limits::kTrainRanksMax);
    }
    if (unit.name().empty() || unit.name().size() > limits::kIdBytesMax) {
      return InvalidArgumentError("a unit's name has {} bytes, expected 1 to {}",
                                  unit.name().size(), limits::kIdBytesMax);
    }
    UnitSpec spec{.name = EscapeUnprintable(unit.name()),
                  .tensors = {unit.tensors().begin(), unit.tensors().end()}};
    DWS_ASSIGN_OR_RETURN(const uint64_t bytes, UnitBytes(spec, tensors));
    if (bytes > order.arena_bytes) {
      return InvalidArgumentError("unit '{}' has {} bytes, and the arena {}", spec.name, bytes,
                                  order.arena_bytes);
    }
    order.shards.push_back({.name = spec.name, .elements = unit.shard_elements()});
    order.pushed.emplace_back(unit.pushed_elements().begin(), unit.pushed_elements().end());
    order.units.push_back(std::move(spec));
  }
  return order;
}

Digest CommonDigest(const JoinOrder& order) {
  std::string text = order.exact ? "exact" : "fp32";
  const auto add = [&text](const std::string& part) {
    text += fmt::format(" {}:{}", part.size(), part);
  };
  for (const UnitSpec& unit : order.units) {
    add(unit.name);
    text += fmt::format(" {}", unit.tensors.size());
    for (const std::string& tensor : unit.tensors) add(tensor);
  }
  return DigestBytes(AsBytes(text), 0);
}

}  // namespace dws
