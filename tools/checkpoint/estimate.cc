#include "tools/checkpoint/estimate.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/formats/checkpoint/settled.h"
#include "common/model/tensor_group.h"
#include "tools/checkpoint/slime_size.h"

namespace dws::checkpoint {
namespace {

size_t DensityBinOf(uint64_t changed, uint64_t elements) {
  if (changed == 0) return 0;
  const double density = static_cast<double>(changed) / static_cast<double>(elements);
  return static_cast<size_t>(
             std::lower_bound(kDensityEnds.begin(), kDensityEnds.end() - 1, density) -
             kDensityEnds.begin()) +
         1;
}

void CountSlices(const RankLayout& layout, std::span<const SliceChange> changes,
                 Estimate& estimate) {
  std::map<std::string, GroupEstimate> groups;
  for (uint32_t s = 0; s < layout.slice_count(); ++s) {
    const RankLayout::SliceEntry& slice = layout.slice(RankSlice(s));
    const SliceChange& change = changes[s];
    const std::string name = GroupOf(layout.tensor(RankSlice(s)).name);
    GroupEstimate& group = groups[name];
    group.name = name;
    ++group.tensors;
    group.elements += slice.elements;
    group.changed += change.nnz;
    group.bytes += slice.size_bytes();
    group.changed_bytes += change.nnz * ElementBytes(slice.dtype);
    estimate.changed += change.nnz;
    estimate.changed_tensors += change.nnz > 0 ? 1 : 0;
    if (MappingOf(slice.dtype) == Mapping::kInteger) estimate.changed_integers += change.nnz;
    for (size_t i = 0; i < kStepBins; ++i) estimate.steps[i] += change.steps[i];
    DensityBin& bin = estimate.densities[DensityBinOf(change.nnz, slice.elements)];
    ++bin.tensors;
    bin.bytes += slice.size_bytes();
  }
  for (auto& [name, group] : groups) estimate.groups.push_back(std::move(group));
  std::stable_sort(estimate.groups.begin(), estimate.groups.end(),
                   [](const GroupEstimate& a, const GroupEstimate& b) {
                     return a.changed_bytes > b.changed_bytes;
                   });
}

}  // namespace

Result<Estimate> EstimateSync(const Checkpoint& a, const Checkpoint& b,
                              const EstimateOptions& options, ThreadPool& pool,
                              const Progress& progress) {
  TensorPairs pairs = MatchTensors(a, b);
  Estimate estimate{.mismatches = std::move(pairs.mismatches)};
  if (pairs.before.empty()) {
    return FailedPreconditionError("A and B have no tensor in common, of {} and {}",
                                   a.tensors().size(), b.tensors().size());
  }
  DWS_ASSIGN_OR_RETURN(const RankLayout layout, LayoutOf(pairs.before));
  const Walk walk{.layout = layout, .pool = pool, .progress = progress};
  PairSource source(layout, pairs.before, pairs.after);
  // The objects are really encoded, because a formula would not match `pack`. Their frames are
  // dropped.
  ObjectWriter fast(DropFrame);
  ObjectWriter wan(DropFrame);
  const std::array<EncodeTarget, 2> targets = {
      EncodeTarget{.encoding = Encoding::kFast, .writer = &fast},
      EncodeTarget{.encoding = Encoding::kWan, .writer = &wan}};
  DWS_ASSIGN_OR_RETURN(const std::vector<SliceChange> changes,
                       EncodeDifference(walk, "comparing and encoding", source, targets));
  const DeltaManifest identity{.version = WeightVersion(2),
                               .base_version = WeightVersion(1),
                               .layout_signature = layout.signature(),
                               .state_token = StateToken(DigestsAfter(changes))};
  estimate.fast_bytes = fast.Finish(identity).size() + fast.frames_bytes();
  estimate.wan_bytes = wan.Finish(identity).size() + wan.frames_bytes();
  estimate.tensors = layout.slice_count();
  estimate.elements = layout.element_count();
  estimate.full_bytes = layout.size_bytes();
  CountSlices(layout, changes, estimate);
  if (options.slime) {
    DWS_ASSIGN_OR_RETURN(estimate.slime_bytes, MeasureSlime(pairs, pool, progress));
  }
  DWS_RETURN_IF_ERROR(CheckUnchanged(a));
  DWS_RETURN_IF_ERROR(CheckUnchanged(b));
  return estimate;
}

}  // namespace dws::checkpoint
