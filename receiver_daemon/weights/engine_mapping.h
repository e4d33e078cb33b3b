// How the views an engine rank attaches are made of canonical slices: the pure check behind Attach.
// Knows sizes of regions, no memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/tensor_spec.h"
#include "receiver_daemon/weights/layout_set.h"

namespace dws {

// One view in engine memory that holds one range of a canonical tensor.
struct EngineView {
  std::string engine_name;  // for messages
  std::string tensor;
  DType dtype = DType::kBF16;
  bool whole = true;
  uint32_t dim = 0;  // when not whole: [begin, end) of this dimension
  SliceRange range = {};
  std::vector<uint64_t> shape;
  std::vector<uint64_t> strides;  // elements
  uint32_t region = 0;
  uint64_t offset_bytes = 0;
};

// Where one canonical slice lies in the engine's regions.
struct MappedSlice {
  OwnedSlice slice;
  uint32_t view = 0;  // index, for messages
  uint32_t region = 0;
  uint64_t offset_bytes = 0;  // of its first element
  StridedRuns runs;
  uint32_t element_bytes = 1;
};

// The consecutive slices of a tensor that one view holds.
struct MappedRange {
  std::string tensor;
  uint32_t view = 0;
  uint32_t first_slice = 0;
  uint32_t slice_count = 0;
};

struct EngineMapping {
  std::vector<MappedSlice> slices;  // those with elements
  std::vector<MappedRange> ranges;
  std::vector<std::string> view_names;
  std::vector<std::string> excluded;
};

// INVALID_ARGUMENT, naming view, tensor and the layout's grid: an unknown name, another dtype or
// shape, a range that is no union of declared slices, strides of two levels, bytes outside the
// region, two views that write to the same bytes.
Result<EngineMapping> MapEngine(const LayoutSet& layouts, std::span<const EngineView> views,
                                std::span<const uint64_t> region_bytes,
                                std::vector<std::string> excluded);

// What the engine ranks of one receiver hold together.
enum class Coverage : uint8_t {
  kWhole,  // the engine: every slice
  kShare,  // in a commit group: of every tensor some slice, the others are other members'
};

// INVALID_ARGUMENT unless the mappings of all engine ranks together hold that, or none of a tensor
// that is excluded, and ranges of one tensor are equal (replicas) or apart.
Status CheckCoverage(const LayoutSet& layouts, std::span<const EngineMapping* const> engine_ranks,
                     Coverage coverage = Coverage::kWhole);

// INVALID_ARGUMENT, naming two views: their bytes overlap, or interleave with different strides,
// which is not supported. (A part of MapEngine, apart for its tests.)
Status CheckDisjoint(const EngineMapping& mapping);

}  // namespace dws
