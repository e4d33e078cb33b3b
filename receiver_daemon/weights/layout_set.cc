#include "receiver_daemon/weights/layout_set.h"

#include <optional>
#include <string_view>
#include <utility>

#include "common/base/check.h"

namespace dws {

namespace {

// A grid of many slices can be declared in few bytes. So before memory for all of its slices is
// allocated, ranks must own as many slices.
Status CheckOwned(const std::vector<std::shared_ptr<const RankLayout>>& ranks) {
  std::map<std::string_view, std::pair<const TensorSpec*, uint64_t>> owned;
  for (const auto& layout : ranks) {
    for (const Shard& shard : layout->shards()) {
      auto& [spec, slices] = owned[shard.tensor.name];
      if (spec != nullptr && *spec != shard.tensor && SameButCuts(*spec, shard.tensor)) {
        return UnavailableError(
            "trainer ranks cut tensor '{}' differently: {} and {}; their senders are asked to cut "
            "it alike",
            shard.tensor.name, ToString(*spec), ToString(shard.tensor));
      }
      spec = &shard.tensor;
      slices += CellCount(shard.cells);
    }
  }
  for (const auto& [name, tensor] : owned) {
    const auto& [spec, slices] = tensor;
    if (slices >= spec->SliceCount()) continue;
    return FailedPreconditionError(
        "tensor '{}', {}: the {} trainer ranks own {} of its {} slices, some are owned by no "
        "trainer rank",
        name, ToString(*spec), ranks.size(), slices, spec->SliceCount());
  }
  return OkStatus();
}

}  // namespace

Result<std::shared_ptr<const LayoutSet>> LayoutSet::Create(
    std::vector<std::shared_ptr<const RankLayout>> ranks) {
  DWS_CHECK(!ranks.empty());
  DWS_RETURN_IF_ERROR(CheckOwned(ranks));
  auto set = std::shared_ptr<LayoutSet>(new LayoutSet);
  std::map<std::string_view, std::vector<std::optional<OwnedSlice>>> owners;
  for (uint32_t r = 0; r < ranks.size(); ++r) {
    const RankLayout& layout = *ranks[r];
    uint32_t s = 0;
    for (const Shard& shard : layout.shards()) {
      const TensorSpec& spec = shard.tensor;
      const auto [tensor, is_new] = set->tensors_.try_emplace(spec.name);
      auto& slots = owners[tensor->first];
      if (is_new) {
        tensor->second.spec = spec;
        slots.resize(spec.SliceCount());
      }
      if (tensor->second.spec != spec) {
        return FailedPreconditionError(
            "trainer ranks declare tensor '{}' differently: {} and {} (rank {})", spec.name,
            ToString(tensor->second.spec), ToString(spec), r);
      }
      for (const uint32_t end = s + CellCount(shard.cells); s < end; ++s) {
        const uint32_t slice = layout.slice(RankSlice(s)).slice;
        DWS_CHECK(slice < slots.size());
        // Each slice has exactly one owner: two would send different bytes for the same memory.
        if (slots[slice].has_value()) {
          return FailedPreconditionError(
              "tensor '{}': slice {} is owned by trainer ranks {} and {}", spec.name, slice,
              slots[slice]->rank.value(), r);
        }
        slots[slice] = OwnedSlice{.rank = TrainerRank(r), .slice = RankSlice(s)};
      }
    }
  }
  for (auto& [name, tensor] : set->tensors_) {
    const auto& slots = owners[name];
    for (uint32_t s = 0; s < slots.size(); ++s) {
      if (!slots[s].has_value()) {
        return FailedPreconditionError("tensor '{}', {}: slice {} is owned by no trainer rank",
                                       name, ToString(tensor.spec), s);
      }
      tensor.owners.push_back(*slots[s]);
    }
  }
  set->ranks_ = std::move(ranks);
  return std::shared_ptr<const LayoutSet>(std::move(set));
}

Result<LayoutSetPtr> LayoutSet::Refined(const CutWishes& cuts) const {
  std::vector<std::shared_ptr<const RankLayout>> finer;
  for (const auto& rank : ranks_) {
    DWS_ASSIGN_OR_RETURN(RankLayout layout, dws::Refined(*rank, cuts));
    finer.push_back(std::make_shared<const RankLayout>(std::move(layout)));
  }
  return Create(std::move(finer));
}

const LayoutSet::Tensor* LayoutSet::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

size_t LayoutSet::slice_count() const {
  size_t count = 0;
  for (const auto& [name, tensor] : tensors_) count += tensor.owners.size();
  return count;
}

std::string LayoutSet::SliceName(size_t slice) const {
  for (const auto& [name, tensor] : tensors_) {
    if (slice < tensor.owners.size()) {
      return fmt::format("slice {} of tensor '{}' ({})", slice, name, ToString(tensor.spec));
    }
    slice -= tensor.owners.size();
  }
  return fmt::format("a slice that is not in this layout of {} slices", slice_count());
}

bool LayoutSet::Fits(const SyncTarget& target) const {
  if (target.ranks.size() != ranks_.size()) return false;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (target.ranks[r].layout->signature() != ranks_[r]->signature()) return false;
  }
  return true;
}

bool LayoutSet::SameAs(const LayoutSet& other) const {
  if (ranks_.size() != other.ranks_.size()) return false;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r]->signature() != other.ranks_[r]->signature()) return false;
  }
  return true;
}

}  // namespace dws
