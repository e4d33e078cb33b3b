// What a rank holds of a canonical tensor, and where: the meeting point of placements (mesh.h) and
// rules (fused_tensor.h), and how elements get from one such place to another. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "common/mesh/fused_tensor.h"
#include "common/mesh/mesh.h"

namespace dws::mesh {

// Elements of a canonical tensor in the memory of a rank. `offset` and strides count elements, from
// the start of what the rank holds of its own tensor.
struct Fragment {
  Stripes part;             // of the canonical tensor
  uint64_t offset = 0;      // of the first element of the first block
  Index strides{};          // of one index of each canonical dimension
  uint64_t block_step = 0;  // from a block to the next
};

// Appends what `local` holds of `piece`: at most 3 fragments.
void AppendFragments(const Piece& piece, const LocalBox& local, std::vector<Fragment>& out);

// One level of repetition of a copy, in bytes.
struct Loop {
  uint64_t count = 0;
  uint64_t source_stride = 0;
  uint64_t destination_stride = 0;

  friend bool operator==(const Loop&, const Loop&) = default;
};

// A copy of `inner_bytes` consecutive bytes, repeated by `loops`, the outermost first.
struct Copy {
  uint64_t source_offset = 0;
  uint64_t destination_offset = 0;
  uint64_t inner_bytes = 0;
  std::vector<Loop> loops;
};

// The copy of `part`, which both fragments contain, with as few and as long runs as possible.
Copy CopyOf(const Fragment& source, const Fragment& destination, const Stripes& part,
            uint32_t element_bytes);

}  // namespace dws::mesh
