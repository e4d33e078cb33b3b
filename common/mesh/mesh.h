// Meshes of ranks and how tensors are placed on them, in DTensor's words, and what each rank holds
// as a consequence. Pure.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/mesh/box.h"

namespace dws::mesh {

struct Axis {
  std::string name;
  uint32_t size = 1;
};

// Ranks in row-major order over the axes; the last axis changes fastest.
struct Mesh {
  std::vector<Axis> axes;
  std::vector<uint32_t> ranks;
};

// What one axis of a mesh does to a tensor. Axes apply one after the other, the first one first.
struct Placement {
  enum class Kind : uint8_t {
    kReplicate,
    kShard,  // cut along `dim` as torch.chunk cuts: the last chunks may be short or empty
    // Cut into `split` chunks and each of these by the axis, which takes one of each. As DTensor
    // says: where the chunks are uneven, fully_shard after tensor parallelism holds other rows than
    // that, and dws.trainers.placement refuses them.
    kStridedShard,
    kOwner,  // only the coordinates in `owners` hold the tensor: experts, pipeline stages
  };
  Kind kind = Kind::kReplicate;
  uint32_t dim = 0;
  uint32_t split = 1;
  std::vector<uint32_t> owners;

  friend auto operator<=>(const Placement&, const Placement&) = default;
};

inline Placement Replicate() { return {}; }
inline Placement Shard(uint32_t dim) { return {.kind = Placement::Kind::kShard, .dim = dim}; }
inline Placement StridedShard(uint32_t dim, uint32_t split) {
  return {.kind = Placement::Kind::kStridedShard, .dim = dim, .split = split};
}
inline Placement Owner(std::vector<uint32_t> coordinates) {
  return {.kind = Placement::Kind::kOwner, .owners = std::move(coordinates)};
}

// A box of a tensor in the memory of a rank, in elements from the start of what it holds of it.
struct LocalBox {
  Box box;
  uint64_t offset = 0;
  Index strides{};
};

// Ranks that hold the same boxes of a tensor, in the same places.
struct Holding {
  std::vector<uint32_t> ranks;
  std::vector<LocalBox> boxes;  // disjoint, not empty
};

// Elements [begin, end) of the flattened tensor on one rank (FSDP1, ZeRO).
struct FlatRange {
  uint32_t rank = 0;
  uint64_t begin = 0;
  uint64_t end = 0;

  friend auto operator<=>(const FlatRange&, const FlatRange&) = default;
};

// INVALID_ARGUMENT naming the axis: a mesh whose ranks do not fill its axes, or name a rank twice
// or beyond `rank_count`.
Status Validate(const Mesh& mesh, uint32_t rank_count);

// What the ranks of a valid mesh hold of a tensor of `shape`, without ranks that hold nothing. What
// a rank holds is row-major in its memory. INVALID_ARGUMENT: placements do not fit the mesh or the
// shape; RESOURCE_EXHAUSTED: more than kHeldBoxesMax boxes.
Result<std::vector<Holding>> HoldingsOf(const Mesh& mesh, const std::vector<Placement>& placements,
                                        const std::vector<uint64_t>& shape);

// The same of flat ranges. INVALID_ARGUMENT: a range is outside the tensor.
Result<std::vector<Holding>> HoldingsOf(const std::vector<FlatRange>& ranges,
                                        const std::vector<uint64_t>& shape);

}  // namespace dws::mesh
