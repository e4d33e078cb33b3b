// Finds the canonical slices that the views of an engine rank hold. Attach checks engines with it.
// Pure functions; they know the sizes of regions but touch no memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/cells.h"
#include "common/model/tensor_spec.h"
#include "receiver_daemon/weights/layout_set.h"

namespace dws {

// What a view holds of one dimension of a canonical tensor.
struct ViewRange {
  uint32_t dim = 0;
  DimRange range;
};

// One view in engine memory that holds one box of a canonical tensor.
struct EngineView {
  std::string engine_name;  // for messages
  std::string tensor;
  DType dtype = DType::kBF16;
  std::vector<ViewRange> ranges;  // by ascending dimension; those not named are held whole
  std::vector<uint64_t> shape;
  std::vector<uint64_t> strides;  // elements
  uint32_t region = 0;
  uint64_t offset_bytes = 0;
};

// The place of one canonical slice in the engine's regions.
struct MappedSlice {
  OwnedSlice slice;
  uint32_t view = 0;  // index in `view_names`, for messages
  uint32_t region = 0;
  uint64_t offset_bytes = 0;  // of its first element
  StridedRuns runs;
  uint32_t element_bytes = 1;
};

// The slices of a tensor that one view holds.
struct MappedRange {
  std::string tensor;
  uint32_t view = 0;
  CellBox cells;
};

// The slices that the views of one engine rank hold, and their places. A plain value.
struct EngineMapping {
  std::vector<MappedSlice> slices;  // only those with elements
  std::vector<MappedRange> ranges;
  std::vector<std::string> view_names;  // by view
  std::vector<std::string> excluded;    // tensors that this rank does not hold
};

// INVALID_ARGUMENT: an unknown name, a wrong dtype or shape, ranges that are no box of declared
// slices, strides of two levels, bytes outside the region, or two views of the same bytes. The
// message names the view, the tensor and the layout's grid.
Result<EngineMapping> MapEngine(const LayoutSet& layouts, std::span<const EngineView> views,
                                std::span<const uint64_t> region_bytes,
                                std::vector<std::string> excluded);

// Returns the boundaries that `views` need and the layouts lack. If a view lacks one and may be one
// of equal parts of a dimension, the boundaries of all parts are returned, because other ranks of
// the engine will need them. Views that MapEngine refuses for another reason are ignored.
CutWishes MissingCuts(const LayoutSet& layouts, std::span<const EngineView> views);

// What the engine ranks of one receiver must hold together of each tensor that is not excluded.
enum class Coverage : uint8_t {
  kWhole,  // a whole engine: every slice
  kShare,  // a member of a commit group: at least one slice; other members hold the others
};

// INVALID_ARGUMENT unless all engine ranks together hold what `coverage` demands. A tensor that is
// excluded may be held by none. Ranges of one tensor must be equal (replicas) or must not overlap.
Status CheckCoverage(const LayoutSet& layouts, std::span<const EngineMapping* const> engine_ranks,
                     Coverage coverage = Coverage::kWhole);

// INVALID_ARGUMENT, naming two views: their bytes overlap, or interleave with different strides,
// which is not supported. A step of MapEngine.
Status CheckDisjoint(const EngineMapping& mapping);

}  // namespace dws
