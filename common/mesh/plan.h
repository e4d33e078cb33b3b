// The plan of a transfer from any mesh to any mesh: which bytes of which source rank go where in
// which destination rank. Pure; every process that makes it from the same layouts gets the same.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/mesh/mesh_layout.h"
#include "common/mesh/shares.h"

namespace dws::mesh {

struct PlanOptions {
  SharePolicy policy = SharePolicy::kShares;
  // Ranks of one host that need the same bytes take them once; the others copy them there. Of a
  // broadcast, the first rank of each host takes everything.
  bool once_per_host = false;
  uint64_t share_bytes_min = limits::kShareBytesMin;
  size_t regions_max = limits::kPlanRegionsMax;
};

enum class Hop : uint8_t {
  kNetwork,  // from a source rank
  kHost,     // from a destination rank of the same host, when it has all its kNetwork regions
};

// A copy between two ranks: `inner_bytes` bytes, repeated by loops. Offsets are bytes in what each
// rank holds of its own tensor.
struct Region {
  uint32_t source = 0;  // a rank of the destination's layout if `hop` is kHost
  uint32_t destination = 0;
  uint32_t tensor = 0;              // canonical
  uint32_t source_tensor = 0;       // of the layout that `source` is a rank of
  uint32_t destination_tensor = 0;  // of the destination's layout
  uint32_t first_loop = 0;
  uint8_t loop_count = 0;
  Hop hop = Hop::kNetwork;
  uint64_t source_offset = 0;
  uint64_t destination_offset = 0;
  uint64_t inner_bytes = 0;
};

struct Plan {
  Digest digest;  // of both layouts and the options
  std::vector<uint64_t> source_generations;
  std::vector<uint64_t> destination_generations;
  SharePolicy policy = SharePolicy::kShares;
  std::vector<Region> regions;  // ascending by hop, source, destination
  std::vector<Loop> loops;      // of all regions
  // The proof of coverage: bytes that the destination's ranks hold, padding left out. For each
  // fragment, the parts that regions write are disjoint and have as many elements as it; fragments
  // of a rank are of disjoint pieces in disjoint boxes. MakePlan checks all of it before it returns
  // a plan.
  uint64_t covered_bytes = 0;
  // Canonical tensors of which the destination does not want every element: no proof speaks of
  // them.
  std::vector<uint32_t> not_wanted;
  // Of kBroadcast: what each source rank gives to rank 0, the destination ranks to which rank 0
  // sends everything, and the bytes of all tensors needed.
  std::vector<uint64_t> gathered_bytes;
  std::vector<uint32_t> whole_takers;
  uint64_t whole_bytes = 0;
  uint64_t largest_tensor_bytes = 0;

  std::span<const Loop> LoopsOf(const Region& region) const {
    return std::span(loops).subspan(region.first_loop, region.loop_count);
  }
  uint64_t RunsOf(const Region& region) const;  // how many runs of inner_bytes it has
  uint64_t BytesOf(const Region& region) const { return RunsOf(region) * region.inner_bytes; }
  // Whether any rank has registered again since the plan was made.
  bool IsStale(std::span<const uint64_t> source, std::span<const uint64_t> destination) const;
};

// INVALID_ARGUMENT: a layout is not valid (as Validate says).
// FAILED_PRECONDITION: no source rank holds what a destination rank needs; the message names the
// tensor, the rank and the first range that is missing. RESOURCE_EXHAUSTED: over `regions_max`, or
// over a limit of mesh_limits.h; naming the tensor.
Result<Plan> MakePlan(const Catalogue& catalogue, const MeshLayout& source,
                      const MeshLayout& destination, const PlanOptions& options);

}  // namespace dws::mesh
