// Owners may have refined their layouts at different times, so their cuts are not compared: it is
// proved that their boxes of elements are disjoint and have all elements.
#include "sender_daemon/on_demand/gather/unit_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "sender_daemon/on_demand/gather/limits.h"

namespace dws {
namespace {

// A part of a tensor: a range of each of its dimensions.
struct Box {
  TrainerRank owner;
  std::vector<DimRange> ranges;
};

bool Overlap(const Box& a, const Box& b) {
  for (size_t dim = 0; dim < a.ranges.size(); ++dim) {
    if (a.ranges[dim].end <= b.ranges[dim].begin || b.ranges[dim].end <= a.ranges[dim].begin) {
      return false;
    }
  }
  return true;
}

uint64_t Elements(const Box& box) {
  uint64_t elements = 1;
  for (const DimRange& range : box.ranges) elements *= range.size();
  return elements;
}

const Shard* FindShard(const RankLayout& layout, std::string_view name) {
  const auto found = std::ranges::lower_bound(layout.shards(), name, {}, [](const Shard& shard) {
    return std::string_view(shard.tensor.name);
  });
  return found != layout.shards().end() && found->tensor.name == name ? &*found : nullptr;
}

}  // namespace

// Lifecycle: one plan.
class UnitPlan::Maker {
 public:
  Maker(const UnitSpec& unit, std::span<const std::shared_ptr<const RankLayout>> owners)
      : unit_(unit), owners_(owners) {}

  Result<UnitPlan> Run() {
    if (owners_.size() > limits::kTrainRanksMax) {
      return InvalidArgumentError("unit '{}': {} trainer ranks, at most {} are supported",
                                  unit_.name, owners_.size(), limits::kTrainRanksMax);
    }
    std::set<std::string_view> names;
    for (const std::string& name : unit_.tensors) {
      if (!names.insert(name).second) {
        return InvalidArgumentError("unit '{}' names tensor '{}' twice", unit_.name, name);
      }
      if (const Status added = AddTensor(name); !added.ok()) {
        return InvalidArgumentError("unit '{}': {}", unit_.name, Message(added));
      }
      if (plan_.size_bytes_ > limits::kUnitBytesMax) {
        return InvalidArgumentError("unit '{}' has more than {} bytes", unit_.name,
                                    limits::kUnitBytesMax);
      }
    }
    for (auto& [owner, slices] : slices_) {
      Part part{.owner = owner, .slices = {}, .places = {}, .size_bytes = bytes_.at(owner)};
      for (const auto& [slice, place] : slices) {  // ascending: a map
        part.slices.push_back(slice);
        part.places.push_back(place);
      }
      plan_.parts_.push_back(std::move(part));
    }
    return std::move(plan_);
  }

 private:
  Status AddTensor(const std::string& name) {
    const TensorSpec* spec = nullptr;  // as the first owner has it
    TrainerRank first(0);
    std::vector<Box> boxes;
    uint64_t elements = 0;
    for (uint32_t r = 0; r < owners_.size(); ++r) {
      const TrainerRank owner(r);
      const Shard* const shard = FindShard(*owners_[r], name);
      if (shard == nullptr) continue;
      if (spec == nullptr) {
        spec = &shard->tensor;
        first = owner;
      }
      DWS_RETURN_IF_ERROR(CheckSame(*spec, first, shard->tensor, owner));
      Box box{.owner = owner, .ranges = RangesOf(shard->tensor, shard->cells)};
      if (Elements(box) == 0) continue;
      for (const Box& other : boxes) {
        if (!Overlap(box, other)) continue;
        return InvalidArgumentError("trainer ranks {} and {} own the same elements of tensor '{}'",
                                    other.owner.value(), owner.value(), name);
      }
      elements += Elements(box);
      boxes.push_back(std::move(box));
      DWS_RETURN_IF_ERROR(AddSlices(*owners_[r], owner, *shard));
    }
    if (spec == nullptr) {
      return InvalidArgumentError("no trainer rank has tensor '{}'", name);
    }
    if (elements != spec->ElementCount()) {
      return InvalidArgumentError("{} of {} elements of tensor '{}' have no owner",
                                  spec->ElementCount() - elements, spec->ElementCount(), name);
    }
    plan_.tensors_.push_back({.name = name,
                              .dtype = spec->dtype,
                              .shape = spec->shape,
                              .first_byte = plan_.size_bytes_,
                              .size_bytes = spec->SizeBytes()});
    plan_.size_bytes_ +=
        CeilDiv(spec->SizeBytes(), limits::kUnitAlignment) * limits::kUnitAlignment;
    return OkStatus();
  }

  static Status CheckSame(const TensorSpec& spec, TrainerRank first, const TensorSpec& other,
                          TrainerRank owner) {
    if (other.dtype == spec.dtype && other.shape == spec.shape) return OkStatus();
    const auto whole = [](const TensorSpec& tensor) {
      return fmt::format("{} [{}]", ToString(tensor.dtype), fmt::join(tensor.shape, ", "));
    };
    return InvalidArgumentError("tensor '{}' is {} of trainer rank {}, and {} of trainer rank {}",
                                spec.name, whole(spec), first.value(), whole(other), owner.value());
  }

  // Places the slices that an owner has of the tensor that is added.
  Status AddSlices(const RankLayout& layout, TrainerRank owner, const Shard& shard) {
    const TensorSpec& spec = shard.tensor;
    std::vector<DimRange> whole;
    for (const uint64_t size : spec.shape) whole.push_back({.begin = 0, .end = size});
    const std::vector<uint64_t> strides = RowMajorStrides(spec.shape);
    const uint64_t element_bytes = ElementBytes(spec.dtype);
    for (const uint32_t number : SlicesIn(spec, shard.cells)) {
      const std::optional<RankSlice> slice = layout.Find(spec.name, number);
      if (spec.SliceElements(number) == 0) continue;
      auto runs = RunsWithin(whole, spec.Slice(number), strides);
      if (!runs.ok()) {
        return InvalidArgumentError("slice {} of tensor '{}' of trainer rank {}: {}", number,
                                    spec.name, owner.value(), Message(runs.status()));
      }
      slices_[owner].emplace(
          *slice,
          PlacedMemory::Place{.first_byte = plan_.size_bytes_ + runs->first_element * element_bytes,
                              .run_bytes = runs->runs.run_elements * element_bytes,
                              .stride_bytes = runs->runs.stride_elements * element_bytes});
      bytes_[owner] += spec.SliceBytes(number);
    }
    return OkStatus();
  }

  const UnitSpec& unit_;
  const std::span<const std::shared_ptr<const RankLayout>> owners_;
  UnitPlan plan_;
  std::map<TrainerRank, std::map<RankSlice, PlacedMemory::Place>> slices_;
  std::map<TrainerRank, uint64_t> bytes_;
};

Result<UnitPlan> UnitPlan::Make(const UnitSpec& unit,
                                std::span<const std::shared_ptr<const RankLayout>> owners) {
  return Maker(unit, owners).Run();
}

}  // namespace dws
