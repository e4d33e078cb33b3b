// What all ranks of a trainer, or of all its engines, hold: the tensors of one side of a plan.
// Pure values; not the layout of one rank (common/model/layout.h), which a sender registers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "common/base/status.h"
#include "common/mesh/fragment.h"
#include "common/mesh/fused_tensor.h"
#include "common/mesh/mesh.h"
#include "common/model/digest/digest.h"
#include "common/model/tensor_spec.h"

namespace dws::mesh {

// A tensor of the checkpoint: what both sides name elements by.
struct CanonicalTensor {
  std::string name;
  DType dtype = DType::kBF16;
  std::vector<uint64_t> shape;

  uint64_t SizeBytes() const { return Volume(WholeBox(shape)) * ElementBytes(dtype); }
};
using Catalogue = std::vector<CanonicalTensor>;

// A tensor as the ranks of one mesh hold it.
struct MeshTensor {
  std::string name;
  DType dtype = DType::kBF16;
  FusedTensor content;
  uint32_t mesh = 0;                  // of the layout's meshes
  std::vector<Placement> placements;  // one an axis
  std::vector<FlatRange> flat;        // if not empty, instead of mesh and placements
};

struct MeshLayout {
  uint32_t rank_count = 0;
  std::vector<Mesh> meshes;
  std::vector<MeshTensor> tensors;
  std::vector<uint32_t> hosts;        // of each rank; empty: every rank is alone on its host
  std::vector<uint64_t> generations;  // of each rank's registration; empty: all 0
};

// INVALID_ARGUMENT naming the tensor, the rank where one is known, and the range: dtypes or shapes
// that differ from the catalogue's, pieces that overlap or leave a hole, placements that do not
// fit. RESOURCE_EXHAUSTED: a limit.
Status Validate(const Catalogue& catalogue);
Status Validate(const Catalogue& catalogue, const MeshLayout& layout);

// Equal exactly for equal layouts of equal catalogues (up to a 128-bit collision), whatever their
// generations.
Digest DigestOf(const Catalogue& catalogue, const MeshLayout& layout);

// A fragment on several ranks, each of which has it at the same place of its own tensor.
struct Part {
  Fragment fragment;
  const Holding* holding = nullptr;
  uint32_t tensor = 0;  // of the layout
};

// Answers which ranks hold what of a canonical tensor. `layout` outlives it. Threads: one at a
// time.
class PartIndex {
 public:
  // INVALID_ARGUMENT, RESOURCE_EXHAUSTED: as HoldingsOf says, or over kLayoutHoldingsMax; naming
  // the tensor.
  static Result<PartIndex> Create(const MeshLayout& layout, size_t canonical_count);

  // In the order of the layout's tensors. RESOURCE_EXHAUSTED naming the tensor: over kPartsMax.
  Result<std::vector<Part>> PartsOf(uint32_t canonical) const;
  // The most ranks that hold one element of it in one tensor; 0: none does.
  size_t ReplicasOf(uint32_t canonical) const;

 private:
  using Key =
      std::tuple<uint32_t, std::vector<uint64_t>, std::vector<Placement>, std::vector<FlatRange>>;
  struct Reference {
    uint32_t tensor = 0;
    uint32_t piece = 0;
  };

  explicit PartIndex(const MeshLayout& layout) : layout_(&layout) {}

  const MeshLayout* layout_;
  std::map<Key, std::vector<Holding>> holdings_;          // tensors placed alike share one
  std::vector<const std::vector<Holding>*> holdings_of_;  // of each tensor
  std::vector<std::vector<Reference>> references_;        // of each canonical tensor
};

}  // namespace dws::mesh
