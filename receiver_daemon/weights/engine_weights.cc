#include "receiver_daemon/weights/engine_weights.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "common/base/check.h"

namespace dws {
namespace {

// The slices of all engine ranks, sorted by the memory they are in.
struct Sorted {
  std::vector<std::pair<OwnedSlice, SegmentMap>> host;
  struct OnDevice {
    cuda::CudaDevicePtr device;
    std::vector<std::pair<OwnedSlice, cuda::Place>> slices;
  };
  std::map<std::string, OnDevice> devices;  // by UUID
};

Status SortSlice(const MappedRegion& region, const MappedSlice& slice, Sorted& sorted) {
  if (const auto* host = std::get_if<HostRegion>(&region)) {
    DWS_ASSIGN_OR_RETURN(SegmentMap map,
                         SegmentMap::Create(host->mutable_bytes(), slice.offset_bytes, slice.runs,
                                            slice.element_bytes));
    sorted.host.emplace_back(slice.slice, map);
    return OkStatus();
  }
  const auto& on_device = std::get<cuda::CudaRegion>(region);
  DWS_RETURN_IF_ERROR(
      CheckRuns(on_device.size_bytes(), slice.offset_bytes, slice.runs, slice.element_bytes));
  Sorted::OnDevice& device = sorted.devices[on_device.device()->uuid()];
  device.device = on_device.device();
  device.slices.emplace_back(slice.slice,
                             cuda::Place{.base = on_device.address() + slice.offset_bytes,
                                         .run_elements = slice.runs.run_elements,
                                         .stride_elements = slice.runs.stride_elements});
  return OkStatus();
}

}  // namespace

Result<std::shared_ptr<const EngineWeights>> EngineWeights::Create(
    LayoutSetPtr layouts, std::vector<AttachedMemoryPtr> ranks, Coverage coverage,
    const CudaOptions& cuda) {
  std::vector<const EngineMapping*> mappings;
  for (const AttachedMemoryPtr& rank : ranks) mappings.push_back(&rank->mapping);
  DWS_RETURN_IF_ERROR(CheckCoverage(*layouts, mappings, coverage));

  auto weights = std::shared_ptr<EngineWeights>(new EngineWeights);
  Sorted sorted;
  for (const AttachedMemoryPtr& rank : ranks) {
    weights->generation_ = std::max(weights->generation_, rank->generation);
    for (const MappedSlice& slice : rank->mapping.slices) {
      DWS_CHECK(slice.region < rank->regions().size());
      DWS_RETURN_IF_ERROR(SortSlice(rank->regions()[slice.region], slice, sorted));
    }
  }
  for (auto& [uuid, on_device] : sorted.devices) {
    DWS_ASSIGN_OR_RETURN(
        std::unique_ptr<CudaBackend> backend,
        CudaBackend::Create(std::move(on_device.device),
                            SlicePlaces<cuda::Place>(*layouts, std::move(on_device.slices)), cuda));
    weights->memory_.push_back(std::move(backend));
  }
  if (!sorted.host.empty() || weights->memory_.empty()) {
    weights->memory_.push_back(
        std::make_unique<HostBackend>(SlicePlaces<SegmentMap>(*layouts, std::move(sorted.host))));
  }
  weights->layouts_ = std::move(layouts);
  weights->ranks_ = std::move(ranks);
  for (uint32_t r = 0; r < weights->layouts_->world_size(); ++r) {
    weights->held_.push_back(weights->FindHeld(TrainerRank(r)));
  }
  return std::shared_ptr<const EngineWeights>(std::move(weights));
}

EngineShare EngineWeights::Share() const {
  std::set<std::string_view> left_out;
  for (const AttachedMemoryPtr& rank : ranks_) {
    left_out.insert(rank->mapping.excluded.begin(), rank->mapping.excluded.end());
  }
  EngineShare share;
  for (const auto& [name, tensor] : layouts_->tensors()) {
    const auto holds = [this](const OwnedSlice& owner) { return Holds(owner.rank, owner.slice); };
    // A tensor that one rank excludes may be held by another rank of this receiver.
    const bool excluded =
        left_out.contains(name) && std::none_of(tensor.owners.begin(), tensor.owners.end(), holds);
    for (const OwnedSlice& owner : tensor.owners) {
      share.held.push_back(HasAllOf(owner));
      share.excluded.push_back(excluded);
    }
  }
  DWS_CHECK(share.held.size() == layouts_->slice_count());
  return share;
}

size_t EngineWeights::PlaceCount(TrainerRank rank, RankSlice slice) const {
  size_t count = 0;
  for (const auto& memory : memory_) count += memory->PlaceCount(rank, slice);
  return count;
}

bool EngineWeights::OnDevices(TrainerRank rank, RankSlice slice) const {
  for (const auto& memory : memory_) {
    if (!memory->on_device() && memory->PlaceCount(rank, slice) > 0) return false;
  }
  return PlaceCount(rank, slice) > 0;
}

Duration EngineWeights::UploadTime() const {
  Duration time = {};
  for (const auto& memory : memory_) time += memory->UploadTime();
  return time;
}

bool EngineWeights::HasAllOf(const OwnedSlice& slice) const {
  return layouts_->rank(slice.rank).slice(slice.slice).blocks == 0 ||
         Holds(slice.rank, slice.slice);
}

SliceSelection EngineWeights::FindHeld(TrainerRank rank) const {
  const uint32_t slices = layouts_->rank(rank).slice_count();
  std::vector<RankSlice> held;
  for (uint32_t s = 0; s < slices; ++s) {
    if (HasAllOf({.rank = rank, .slice = RankSlice(s)})) held.emplace_back(s);
  }
  if (held.size() == slices) return std::nullopt;
  return held;
}

bool EngineWeights::empty() const {
  for (uint32_t r = 0; r < layouts_->world_size(); ++r) {
    const uint32_t slices = layouts_->rank(TrainerRank(r)).slice_count();
    for (uint32_t s = 0; s < slices; ++s) {
      if (Holds(TrainerRank(r), RankSlice(s))) return false;
    }
  }
  return true;
}

Status EngineWeights::Read(TrainerRank rank, RankSlice slice, uint32_t first_block,
                           MutableByteSpan out) const {
  for (const auto& memory : memory_) {
    if (memory->PlaceCount(rank, slice) == 0) continue;
    return memory->Read(layouts_->rank(rank), rank, slice, first_block, out);
  }
  DWS_CHECK(false);  // held nowhere
  return OkStatus();
}

Result<std::vector<SliceState>> EngineWeights::ComputeStates(TrainerRank rank,
                                                             std::span<const RankSlice> slices,
                                                             Pace pace, ThreadPool& pool) const {
  const RankLayout& layout = layouts_->rank(rank);
  std::vector<SliceState> states(slices.size());
  for (const auto& memory : memory_) {
    DWS_ASSIGN_OR_RETURN(const std::vector<std::vector<Digest>> digests,
                         memory->Digests(layout, rank, slices, pace, pool));
    DWS_CHECK(digests.size() == slices.size());
    for (size_t i = 0; i < slices.size(); ++i) {
      for (const Digest& digest : digests[i]) {
        if (layout.slice(slices[i]).blocks == 0) continue;
        if (states[i].kind == SliceState::Kind::kNotHeld) {
          states[i] = {.kind = SliceState::Kind::kHeld, .digest = digest};
        } else if (states[i].digest != digest) {
          states[i].kind = SliceState::Kind::kDiffers;
        }
      }
    }
  }
  return states;
}

Result<std::vector<SliceState>> EngineWeights::ComputeStates(TrainerRank rank,
                                                             ThreadPool& pool) const {
  std::vector<RankSlice> all;
  for (uint32_t s = 0; s < layouts_->rank(rank).slice_count(); ++s) all.emplace_back(s);
  return ComputeStates(rank, all, Pace::kPaused, pool);
}

}  // namespace dws
