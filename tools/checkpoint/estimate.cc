// A view is another model of the same checkpoints: its figures come from the same walk.
#include "tools/checkpoint/estimate.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/formats/checkpoint/settled.h"
#include "common/model/tensor_group.h"
#include "common/quantise/view.h"
#include "tools/checkpoint/parts/object_sizes.h"
#include "tools/checkpoint/parts/view_source.h"
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

Result<ViewEstimate> MeasureView(const quantise::ViewLayout& view, const TensorPairs& pairs,
                                 ThreadPool& pool, const Progress& progress) {
  const RankLayout& layout = view.layout();
  const Walk walk{.layout = layout, .pool = pool, .progress = progress};
  ViewSource source(view, pairs.before, pairs.after, pool);
  DWS_ASSIGN_OR_RETURN(const ObjectSizes sizes,
                       MeasureObjects(walk, "quantising and encoding", source));
  ViewEstimate estimate{.name = layout.view(),
                        .tensors = layout.slice_count(),
                        .full_bytes = layout.size_bytes(),
                        .fast_bytes = sizes.fast_bytes,
                        .wan_bytes = sizes.wan_bytes,
                        .changed_codes = source.changed_codes()};
  for (const quantise::ViewLayout::Slice& slice : view.slices()) {
    if (!slice.grid.has_value()) continue;
    ++estimate.quantised;
    estimate.codes += slice.grid->shape().elements();
    if (!slice.scales.has_value()) continue;
    estimate.scales += slice.grid->tile_count();
    estimate.changed_scales += sizes.changes[slice.scales->value()].nnz;
  }
  for (const quantise::ViewLayout::Matrices& matrices : view.matrices()) {
    for (const RankSlice scales : matrices.scales) {
      estimate.matrix_scales += layout.slice(scales).elements;
      estimate.changed_matrix_scales += sizes.changes[scales.value()].nnz;
    }
  }
  return estimate;
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
  std::vector<quantise::ViewLayout> views;
  for (const std::string& name : options.views) {
    auto view = quantise::ViewLayout::Create(name, layout);
    if (!view.ok()) return InvalidArgumentError("view '{}': {}", name, Message(view.status()));
    views.push_back(*std::move(view));
  }
  const Walk walk{.layout = layout, .pool = pool, .progress = progress};
  PairSource source(layout, pairs.before, pairs.after);
  DWS_ASSIGN_OR_RETURN(const ObjectSizes sizes,
                       MeasureObjects(walk, "comparing and encoding", source));
  estimate.fast_bytes = sizes.fast_bytes;
  estimate.wan_bytes = sizes.wan_bytes;
  estimate.tensors = layout.slice_count();
  estimate.elements = layout.element_count();
  estimate.full_bytes = layout.size_bytes();
  CountSlices(layout, sizes.changes, estimate);
  for (const quantise::ViewLayout& view : views) {
    DWS_ASSIGN_OR_RETURN(estimate.views.emplace_back(), MeasureView(view, pairs, pool, progress));
  }
  if (options.slime) {
    DWS_ASSIGN_OR_RETURN(estimate.slime_bytes, MeasureSlime(pairs, pool, progress));
  }
  DWS_RETURN_IF_ERROR(CheckUnchanged(a));
  DWS_RETURN_IF_ERROR(CheckUnchanged(b));
  return estimate;
}

}  // namespace dws::checkpoint
