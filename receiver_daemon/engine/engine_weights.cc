#include "receiver_daemon/engine/engine_weights.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "receiver_daemon/commit/block_source.h"

namespace dws {
namespace {

// Blocks that one step of a parallel digest reads: 4 MiB of BF16.
constexpr uint32_t kBlocksPerStep = 32;

struct DigestStep {
  uint32_t item = 0;  // index in `slices`
  uint32_t place = 0;
  uint32_t first_block = 0;
};

}  // namespace

Result<std::shared_ptr<const EngineWeights>> EngineWeights::Create(
    LayoutSetPtr layouts, std::vector<AttachedMemoryPtr> ranks, Coverage coverage) {
  std::vector<const EngineMapping*> mappings;
  for (const AttachedMemoryPtr& rank : ranks) mappings.push_back(&rank->mapping);
  DWS_RETURN_IF_ERROR(CheckCoverage(*layouts, mappings, coverage));

  std::vector<std::pair<OwnedSlice, SegmentMap>> mapped;
  auto weights = std::shared_ptr<EngineWeights>(new EngineWeights);
  for (const AttachedMemoryPtr& rank : ranks) {
    weights->generation_ = std::max(weights->generation_, rank->generation);
    for (const MappedSlice& slice : rank->mapping.slices) {
      DWS_ASSIGN_OR_RETURN(SegmentMap map,
                           SegmentMap::Create(rank->regions[slice.region].mutable_bytes(),
                                              slice.offset_bytes, slice.runs, slice.element_bytes));
      mapped.emplace_back(slice.slice, map);
    }
  }
  std::stable_sort(mapped.begin(), mapped.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  weights->places_.resize(layouts->world_size());
  size_t next = 0;
  for (uint32_t r = 0; r < layouts->world_size(); ++r) {
    RankPlaces& places = weights->places_[r];
    for (uint32_t s = 0; s < layouts->rank(TrainerRank(r)).slice_count(); ++s) {
      places.first.push_back(static_cast<uint32_t>(places.places.size()));
      const OwnedSlice slice{.rank = TrainerRank(r), .slice = RankSlice(s)};
      for (; next < mapped.size() && mapped[next].first == slice; ++next) {
        places.places.push_back(mapped[next].second);
      }
    }
    places.first.push_back(static_cast<uint32_t>(places.places.size()));
  }
  weights->layouts_ = std::move(layouts);
  weights->ranks_ = std::move(ranks);
  return std::shared_ptr<const EngineWeights>(std::move(weights));
}

EngineShare EngineWeights::Share() const {
  std::set<std::string_view> left_out;
  for (const AttachedMemoryPtr& rank : ranks_) {
    left_out.insert(rank->mapping.excluded.begin(), rank->mapping.excluded.end());
  }
  EngineShare share;
  for (const auto& [name, tensor] : layouts_->tensors()) {
    const auto holds = [this](const OwnedSlice& owner) {
      return !Places(owner.rank, owner.slice).empty();
    };
    // What one rank leaves out another one of this receiver may hold.
    const bool excluded =
        left_out.contains(name) && std::none_of(tensor.owners.begin(), tensor.owners.end(), holds);
    for (const OwnedSlice& owner : tensor.owners) {
      const bool empty = layouts_->rank(owner.rank).slice(owner.slice).blocks == 0;
      share.held.push_back(empty || holds(owner));
      share.excluded.push_back(excluded);
    }
  }
  return share;
}

std::span<const SegmentMap> EngineWeights::Places(TrainerRank rank, RankSlice slice) const {
  const RankPlaces& places = places_[rank.value()];
  const uint32_t first = places.first[slice.value()];
  return std::span(places.places).subspan(first, places.first[slice.value() + 1] - first);
}

std::vector<SliceState> EngineWeights::ComputeStates(TrainerRank rank,
                                                     std::span<const RankSlice> slices,
                                                     ThreadPool& pool) const {
  const RankLayout& layout = layouts_->rank(rank);
  std::vector<DigestStep> steps;
  for (uint32_t i = 0; i < slices.size(); ++i) {
    const auto places = Places(rank, slices[i]);
    for (uint32_t p = 0; p < places.size(); ++p) {
      for (uint32_t b = 0; b < layout.slice(slices[i]).blocks; b += kBlocksPerStep) {
        steps.push_back({.item = i, .place = p, .first_block = b});
      }
    }
  }
  std::vector<Digest> digests(steps.size());
  std::vector<std::vector<std::byte>> scratch(pool.worker_count());
  pool.ParallelFor(steps.size(), [&](size_t index, size_t worker) {
    const DigestStep& step = steps[index];
    const RankLayout::SliceEntry& slice = layout.slice(slices[step.item]);
    const SegmentMap& map = Places(rank, slices[step.item])[step.place];
    const uint32_t end = std::min(step.first_block + kBlocksPerStep, slice.blocks);
    for (uint32_t block = step.first_block; block < end; ++block) {
      digests[index] +=
          DigestBytes(OldBlock(slice, map, block, scratch[worker]), slice.BlockFirstWord(block));
    }
  });

  std::vector<SliceState> states(slices.size());
  for (size_t begin = 0; begin < steps.size();) {
    // The steps of one place follow each other.
    Digest digest;
    size_t end = begin;
    for (; end < steps.size() && steps[end].item == steps[begin].item &&
           steps[end].place == steps[begin].place;
         ++end) {
      digest += digests[end];
    }
    SliceState& state = states[steps[begin].item];
    if (state.kind == SliceState::Kind::kNotHeld) {
      state = {.kind = SliceState::Kind::kHeld, .digest = digest};
    } else if (state.digest != digest) {
      state.kind = SliceState::Kind::kDiffers;
    }
    begin = end;
  }
  return states;
}

std::vector<SliceState> EngineWeights::ComputeStates(TrainerRank rank, ThreadPool& pool) const {
  std::vector<RankSlice> all;
  for (uint32_t s = 0; s < layouts_->rank(rank).slice_count(); ++s) all.emplace_back(s);
  return ComputeStates(rank, all, pool);
}

}  // namespace dws
