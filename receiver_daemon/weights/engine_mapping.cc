// An engine may pass anything: every sum of its offsets, shapes and strides is checked for overflow
// before the mapping uses it.
#include "receiver_daemon/weights/engine_mapping.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// Returns whether elements of type `engine` hold those of `canonical` bit for bit: the types are
// the same, or the engine has plain bytes because its libraries lack the type.
bool HoldsBits(DType engine, DType canonical) {
  if (engine == canonical) return true;
  const bool raw = engine == DType::kU8 || engine == DType::kU16;
  return raw && ElementBytes(engine) == ElementBytes(canonical) &&
         MappingOf(canonical) == Mapping::kFloat;
}

// "[0, 4) of dim 1, [2, 8) of dim 2", for messages.
std::string ToString(const std::vector<ViewRange>& ranges) {
  std::string text;
  for (const ViewRange& each : ranges) {
    text += fmt::format("{}[{}, {}) of dim {}", text.empty() ? "" : ", ", each.range.begin,
                        each.range.end, each.dim);
  }
  return text.empty() ? "all" : text;
}

// Returns the elements that a view says it holds.
Result<std::vector<DimRange>> FindRanges(const EngineView& view, const TensorSpec& spec) {
  std::vector<DimRange> held;
  for (const uint64_t extent : spec.shape) held.push_back({.begin = 0, .end = extent});
  for (size_t i = 0; i < view.ranges.size(); ++i) {
    const auto [dim, range] = view.ranges[i];
    if (dim >= spec.shape.size() || range.begin >= range.end || range.end > spec.shape[dim] ||
        (i > 0 && dim <= view.ranges[i - 1].dim)) {
      return InvalidArgumentError(
          "view '{}' is {} of tensor '{}', which is {}: expected ranges inside it, by ascending "
          "dimension",
          view.engine_name, ToString(view.ranges), spec.name, dws::ToString(spec));
    }
    held[dim] = range;
  }
  return held;
}

// The declared slices that make up the view's ranges.
Result<CellBox> FindSlices(const EngineView& view, const TensorSpec& spec,
                           const std::vector<DimRange>& held) {
  CellBox cells;
  for (uint32_t dim = 0; dim < held.size(); ++dim) {
    const bool is_cut = cells.size() < spec.cuts.size() && spec.cuts[cells.size()].dim == dim;
    std::optional<CellRange> range;
    if (is_cut) range = CellsOf(spec.cuts[cells.size()], spec.shape[dim], held[dim]);
    if (is_cut && range.has_value()) {
      cells.push_back(*range);
      continue;
    }
    if (!is_cut && held[dim] == DimRange{.begin = 0, .end = spec.shape[dim]}) continue;
    return InvalidArgumentError(
        "view '{}' is {} of tensor '{}', which is not a union of the slices the trainer declared: "
        "{}. Declare cuts at {} and {} on dim {} on the trainer's side, or attach a union of its "
        "slices",
        view.engine_name, ToString(view.ranges), spec.name, dws::ToString(spec), held[dim].begin,
        held[dim].end, dim);
  }
  DWS_CHECK(cells.size() == spec.cuts.size());
  return cells;
}

// The other ranks of the engine hold equal parts, at most so many; stacked tensors have more.
constexpr uint64_t kEqualPartsMax = 128;

// Returns where a dimension of `whole` indices has to be cut for a view of `range`, if `known` is
// not enough.
std::vector<uint64_t> BoundariesOf(DimRange range, uint64_t whole, const Cuts* known) {
  const auto is_there = [&](uint64_t at) {
    return at == 0 || at == whole ||
           (known != nullptr && std::ranges::binary_search(known->at, at));
  };
  if (is_there(range.begin) && is_there(range.end)) return {};
  const uint64_t part = range.size();
  std::vector<uint64_t> at;
  if (range.begin % part == 0 && CeilDiv(whole, part) <= kEqualPartsMax) {
    for (uint64_t next = part; next < whole; next += part) at.push_back(next);
    return at;
  }
  if (range.begin > 0) at.push_back(range.begin);
  if (range.end < whole) at.push_back(range.end);
  return at;
}

Status CheckShape(const EngineView& view, const TensorSpec& spec,
                  const std::vector<uint64_t>& expected) {
  if (!HoldsBits(view.dtype, spec.dtype)) {
    return InvalidArgumentError(
        "view '{}' is {}, tensor '{}' is {}: only bit-exact copies can be attached",
        view.engine_name, ToString(view.dtype), spec.name, ToString(spec));
  }
  if (view.shape != expected) {
    return InvalidArgumentError(
        "view '{}' has shape [{}], expected [{}] for what it holds of tensor '{}', {}",
        view.engine_name, fmt::join(view.shape, ", "), fmt::join(expected, ", "), spec.name,
        ToString(spec));
  }
  if (view.strides.size() != view.shape.size()) {
    return InvalidArgumentError("view '{}' has {} strides for {} dimensions", view.engine_name,
                                view.strides.size(), view.shape.size());
  }
  return OkStatus();
}

Status CheckBounds(const EngineView& view, std::span<const uint64_t> region_bytes) {
  DWS_CHECK(view.strides.size() == view.shape.size());  // CheckShape refuses others
  if (view.region >= region_bytes.size()) {
    return InvalidArgumentError("view '{}' is in region {}, the engine passes {}", view.engine_name,
                                view.region, region_bytes.size());
  }
  if (view.offset_bytes % ElementBytes(view.dtype) != 0) {
    return InvalidArgumentError(
        "view '{}' is at byte {} of region {}, expected a multiple of its element's {}",
        view.engine_name, view.offset_bytes, view.region, ElementBytes(view.dtype));
  }
  if (std::find(view.shape.begin(), view.shape.end(), 0) != view.shape.end()) return OkStatus();
  uint64_t last = 0;  // the last element's distance from the first, in elements
  bool overflow = false;
  for (size_t i = 0; i < view.shape.size(); ++i) {
    uint64_t reach = 0;
    overflow |= __builtin_mul_overflow(view.shape[i] - 1, view.strides[i], &reach);
    overflow |= __builtin_add_overflow(last, reach, &last);
  }
  uint64_t end = 0;
  overflow |= __builtin_add_overflow(last, uint64_t{1}, &last);
  overflow |= __builtin_mul_overflow(last, uint64_t{ElementBytes(view.dtype)}, &end);
  overflow |= __builtin_add_overflow(end, view.offset_bytes, &end);
  if (overflow || end > region_bytes[view.region]) {
    return InvalidArgumentError(
        "view '{}' ({} [{}], strides [{}], at byte {}) reaches beyond its region {} of {} bytes",
        view.engine_name, ToString(view.dtype), fmt::join(view.shape, ", "),
        fmt::join(view.strides, ", "), view.offset_bytes, view.region, region_bytes[view.region]);
  }
  return OkStatus();
}

Status MapView(const LayoutSet::Tensor& tensor, const EngineView& view,
               const std::vector<DimRange>& held, const CellBox& cells, uint32_t index,
               EngineMapping& mapping) {
  const TensorSpec& spec = tensor.spec;
  const uint64_t element_bytes = ElementBytes(spec.dtype);
  for (const uint32_t s : SlicesIn(spec, cells)) {
    DWS_CHECK(s < tensor.owners.size());
    if (spec.SliceElements(s) == 0) continue;
    const std::vector<DimRange> slice = spec.Slice(s);
    const Result<BoxRuns> box = RunsWithin(held, slice, view.strides);
    if (!box.ok()) {
      return Annotate(
          box.status(),
          fmt::format("view '{}' of tensor '{}' ({}): slice {}, which is [{}]", view.engine_name,
                      spec.name, dws::ToString(spec), s, fmt::join(ShapeOf(slice), ", ")));
    }
    DWS_CHECK(box->runs.run_elements * box->runs.run_count == spec.SliceElements(s));
    mapping.slices.push_back(
        {.slice = tensor.owners[s],
         .view = index,
         .region = view.region,
         .offset_bytes = view.offset_bytes + box->first_element * element_bytes,
         .runs = box->runs,
         .element_bytes = static_cast<uint32_t>(element_bytes)});
  }
  return OkStatus();
}

// The bytes of a mapped slice.
struct Extent {
  uint32_t region = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t run_bytes = 0;
  uint64_t stride_bytes = 0;  // 0: one run
  uint32_t view = 0;
};

Extent ExtentOf(const MappedSlice& slice) {
  DWS_CHECK(slice.runs.run_count > 0 && slice.runs.run_elements > 0);
  const uint64_t run_bytes = slice.runs.run_elements * slice.element_bytes;
  const uint64_t stride =
      slice.runs.run_count > 1 ? slice.runs.stride_elements * slice.element_bytes : 0;
  return {.region = slice.region,
          .begin = slice.offset_bytes,
          .end = slice.offset_bytes + stride * (slice.runs.run_count - 1) + run_bytes,
          .run_bytes = run_bytes,
          .stride_bytes = stride,
          .view = slice.view};
}

// Expects extents that overlap, with a.begin <= b.begin. True if their runs still do not overlap,
// because both repeat with the same stride.
bool Interleave(const Extent& a, const Extent& b) {
  DWS_CHECK(a.region == b.region && a.begin <= b.begin);
  const uint64_t stride = std::max(a.stride_bytes, b.stride_bytes);
  if (stride == 0 || a.stride_bytes == 0) return false;
  // A single run fits between two runs of a strided extent.
  if (b.stride_bytes != 0 && b.stride_bytes != a.stride_bytes) return false;
  const uint64_t phase = (b.begin - a.begin) % stride;
  return phase >= a.run_bytes && phase + b.run_bytes <= stride;
}

}  // namespace

Status CheckDisjoint(const EngineMapping& mapping) {
  std::vector<Extent> extents;
  extents.reserve(mapping.slices.size());
  for (const MappedSlice& slice : mapping.slices) extents.push_back(ExtentOf(slice));
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::pair(a.region, a.begin) < std::pair(b.region, b.begin);
  });
  std::vector<Extent> active;  // extents that end after the beginning of the present one
  for (const Extent& extent : extents) {
    std::erase_if(active, [&](const Extent& other) {
      return other.region != extent.region || other.end <= extent.begin;
    });
    for (const Extent& other : active) {
      if (Interleave(other, extent)) continue;
      return InvalidArgumentError(
          "views '{}' and '{}' overlap in region {} (bytes [{}, {}) and [{}, {})): each byte of an "
          "engine is "
          "attached once",
          mapping.view_names[other.view], mapping.view_names[extent.view], extent.region,
          other.begin, other.end, extent.begin, extent.end);
    }
    active.push_back(extent);
  }
  return OkStatus();
}

CutWishes MissingCuts(const LayoutSet& layouts, std::span<const EngineView> views) {
  CutWishes missing;
  for (const EngineView& view : views) {
    const LayoutSet::Tensor* const tensor = layouts.Find(view.tensor);
    if (tensor == nullptr || view.ranges.empty()) continue;
    if (!FindRanges(view, tensor->spec).ok()) continue;
    std::vector<Cuts> cuts;
    for (const ViewRange& each : view.ranges) {
      const auto known = std::ranges::find(tensor->spec.cuts, each.dim, &Cuts::dim);
      std::vector<uint64_t> at = BoundariesOf(each.range, tensor->spec.shape[each.dim],
                                              known == tensor->spec.cuts.end() ? nullptr : &*known);
      if (!at.empty()) cuts.push_back({.dim = each.dim, .at = std::move(at)});
    }
    if (!cuts.empty()) Merge(missing, view.tensor, Without(cuts, tensor->spec.cuts));
  }
  return missing;
}

Result<EngineMapping> MapEngine(const LayoutSet& layouts, std::span<const EngineView> views,
                                std::span<const uint64_t> region_bytes,
                                std::vector<std::string> excluded) {
  if (views.size() > limits::kViewsMax) {
    return InvalidArgumentError("{} views, at most {} are supported", views.size(),
                                limits::kViewsMax);
  }
  EngineMapping mapping;
  for (uint32_t i = 0; i < views.size(); ++i) {
    const EngineView& view = views[i];
    const LayoutSet::Tensor* tensor = layouts.Find(view.tensor);
    if (tensor == nullptr) {
      return InvalidArgumentError(
          "view '{}' names tensor '{}', which the trainer's layout does not have", view.engine_name,
          view.tensor);
    }
    DWS_ASSIGN_OR_RETURN(const std::vector<DimRange> held, FindRanges(view, tensor->spec));
    DWS_ASSIGN_OR_RETURN(CellBox cells, FindSlices(view, tensor->spec, held));
    DWS_RETURN_IF_ERROR(CheckShape(view, tensor->spec, ShapeOf(held)));
    DWS_RETURN_IF_ERROR(CheckBounds(view, region_bytes));
    if (mapping.slices.size() + CellCount(cells) > limits::kMappedSlicesMax) {
      return InvalidArgumentError(
          "view '{}' holds {} slices of tensor '{}', and with the views before it more than {}: "
          "attach fewer views, or let the trainer declare fewer cuts",
          view.engine_name, CellCount(cells), view.tensor, limits::kMappedSlicesMax);
    }
    DWS_RETURN_IF_ERROR(MapView(*tensor, view, held, cells, i, mapping));
    mapping.ranges.push_back({.tensor = view.tensor, .view = i, .cells = std::move(cells)});
    mapping.view_names.push_back(view.engine_name);
  }
  for (const std::string& name : excluded) {
    if (layouts.Find(name) == nullptr) {
      return InvalidArgumentError("excluded tensor '{}' is not in the trainer's layout", name);
    }
  }
  mapping.excluded = std::move(excluded);
  DWS_RETURN_IF_ERROR(CheckDisjoint(mapping));
  return mapping;
}

Status CheckCoverage(const LayoutSet& layouts, std::span<const EngineMapping* const> engine_ranks,
                     Coverage coverage) {
  struct Held {
    std::vector<const MappedRange*> by_slice;
    bool excluded = false;
  };
  std::map<std::string_view, Held> held;
  for (const auto& [name, tensor] : layouts.tensors())
    held[name].by_slice.resize(tensor.owners.size());
  for (const EngineMapping* mapping : engine_ranks) {
    for (const std::string& name : mapping->excluded) held.at(name).excluded = true;
    for (const MappedRange& range : mapping->ranges) {
      Held& tensor = held.at(range.tensor);
      const TensorSpec& spec = layouts.Find(range.tensor)->spec;
      for (const uint32_t s : SlicesIn(spec, range.cells)) {
        const MappedRange* other = tensor.by_slice.at(s);
        if (other == nullptr) {
          tensor.by_slice[s] = &range;
        } else if (other->cells != range.cells) {
          return InvalidArgumentError(
              "view '{}' overlaps another view of tensor '{}' ({}): {} and {}; a replica must have "
              "the same range",
              mapping->view_names[range.view], range.tensor, ToString(spec),
              ToString(spec, range.cells), ToString(spec, other->cells));
        }
      }
    }
  }
  for (const auto& [name, tensor] : held) {
    const auto missing = std::find(tensor.by_slice.begin(), tensor.by_slice.end(), nullptr);
    if (missing == tensor.by_slice.end()) continue;
    const bool held_in_part =
        std::any_of(tensor.by_slice.begin(), tensor.by_slice.end(),
                    [](const MappedRange* range) { return range != nullptr; });
    if (held_in_part ? coverage == Coverage::kShare : tensor.excluded) continue;
    return InvalidArgumentError(
        "tensor '{}' ({}): slice {} is attached by no engine rank; map it, or name the tensor in "
        "excluded",
        name, ToString(layouts.Find(name)->spec), missing - tensor.by_slice.begin());
  }
  return OkStatus();
}

}  // namespace dws
