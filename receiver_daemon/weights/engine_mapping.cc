// An engine may pass anything: every sum of its offsets, shapes and strides is checked for overflow
// before the mapping uses it.
#include "receiver_daemon/weights/engine_mapping.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/base/check.h"
#include "common/model/limits.h"

namespace dws {
namespace {

struct SliceSpan {
  uint32_t first = 0;
  uint32_t count = 0;
};

// The declared slices that make up the view's range.
Result<SliceSpan> FindSlices(const EngineView& view, const TensorSpec& spec) {
  if (view.whole) return SliceSpan{.first = 0, .count = spec.SliceCount()};
  if (view.dim >= spec.shape.size() || view.range.begin >= view.range.end ||
      view.range.end > spec.shape[view.dim]) {
    return InvalidArgumentError("view '{}' is [{}, {}) of dim {} of tensor '{}', which is {}",
                                view.engine_name, view.range.begin, view.range.end, view.dim,
                                spec.name, ToString(spec));
  }
  if (view.range.begin == 0 && view.range.end == spec.shape[view.dim]) {
    return SliceSpan{.first = 0, .count = spec.SliceCount()};
  }
  SliceSpan found;
  bool begins = false;
  bool ends = false;
  if (view.dim == spec.cut_dim) {
    for (uint32_t s = 0; s < spec.SliceCount(); ++s) {
      const SliceRange slice = spec.Slice(s);
      if (slice.begin == view.range.begin) {
        begins = true;
        found.first = s;
      }
      if (slice.end == view.range.end) {
        ends = true;
        found.count = s + 1 - found.first;
      }
    }
  }
  if (begins && ends) {
    DWS_CHECK(found.count > 0 && found.count <= spec.SliceCount() - found.first);
    return found;
  }
  return InvalidArgumentError(
      "view '{}' is [{}, {}) of dim {} of tensor '{}', which is not a union of the slices the "
      "trainer declared: {}. "
      "Declare cuts at {} and {} on dim {} on the trainer's side, or attach a union of its slices",
      view.engine_name, view.range.begin, view.range.end, view.dim, spec.name, ToString(spec),
      view.range.begin, view.range.end, view.dim);
}

Status CheckShape(const EngineView& view, const TensorSpec& spec) {
  if (view.dtype != spec.dtype) {
    return InvalidArgumentError(
        "view '{}' is {}, tensor '{}' is {}: only bit-exact copies can be attached",
        view.engine_name, ToString(view.dtype), spec.name, ToString(spec));
  }
  DWS_CHECK(view.whole || view.dim < spec.shape.size());  // FindSlices refuses others
  std::vector<uint64_t> expected = spec.shape;
  if (!view.whole) expected[view.dim] = view.range.end - view.range.begin;
  if (view.shape != expected) {
    return InvalidArgumentError(
        "view '{}' has shape [{}], expected [{}] for its range of tensor '{}', {}",
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

Status MapView(const LayoutSet::Tensor& tensor, const EngineView& view, SliceSpan span,
               uint32_t index, EngineMapping& mapping) {
  const TensorSpec& spec = tensor.spec;
  DWS_CHECK(span.first + span.count <= tensor.owners.size());
  const uint64_t view_begin = spec.Slice(span.first).begin;
  const uint64_t element_bytes = ElementBytes(spec.dtype);
  for (uint32_t s = span.first; s < span.first + span.count; ++s) {
    if (spec.SliceElements(s) == 0) continue;
    const SliceRange slice = spec.Slice(s);
    std::vector<uint64_t> shape = view.shape;
    uint64_t first_element = 0;
    if (!shape.empty()) {
      shape[spec.cut_dim] = slice.end - slice.begin;
      first_element = (slice.begin - view_begin) * view.strides[spec.cut_dim];
    }
    const Result<StridedRuns> runs = CoalesceRuns(shape, view.strides);
    if (!runs.ok()) {
      return Annotate(runs.status(),
                      fmt::format("view '{}' of tensor '{}'", view.engine_name, spec.name));
    }
    DWS_CHECK(runs->run_elements * runs->run_count == spec.SliceElements(s));
    mapping.slices.push_back({.slice = tensor.owners[s],
                              .view = index,
                              .region = view.region,
                              .offset_bytes = view.offset_bytes + first_element * element_bytes,
                              .runs = *runs,
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
  std::vector<Extent> active;  // those that end after the present begin
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
    DWS_ASSIGN_OR_RETURN(const SliceSpan span, FindSlices(view, tensor->spec));
    DWS_RETURN_IF_ERROR(CheckShape(view, tensor->spec));
    DWS_RETURN_IF_ERROR(CheckBounds(view, region_bytes));
    DWS_RETURN_IF_ERROR(MapView(*tensor, view, span, i, mapping));
    mapping.ranges.push_back(
        {.tensor = view.tensor, .view = i, .first_slice = span.first, .slice_count = span.count});
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
    held[name].by_slice.resize(tensor.spec.SliceCount());
  for (const EngineMapping* mapping : engine_ranks) {
    for (const std::string& name : mapping->excluded) held.at(name).excluded = true;
    for (const MappedRange& range : mapping->ranges) {
      Held& tensor = held.at(range.tensor);
      DWS_CHECK(range.first_slice + range.slice_count <= tensor.by_slice.size());
      for (uint32_t s = range.first_slice; s < range.first_slice + range.slice_count; ++s) {
        const MappedRange* other = tensor.by_slice[s];
        if (other == nullptr) {
          tensor.by_slice[s] = &range;
        } else if (other->first_slice != range.first_slice ||
                   other->slice_count != range.slice_count) {
          return InvalidArgumentError(
              "view '{}' overlaps another view of tensor '{}' ({}): slices {} + {} and {} + {}; a "
              "replica must "
              "have the same range",
              mapping->view_names[range.view], range.tensor,
              ToString(layouts.Find(range.tensor)->spec), range.first_slice, range.slice_count,
              other->first_slice, other->slice_count);
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
