// Boxes that repeat along one dimension: what an interleaved tensor holds of another one, without a
// box for each row. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/mesh/box.h"

namespace dws::mesh {

// `count` blocks: the first is `box`, the others follow it `step` apart along dimension `dim`.
// Blocks do not overlap: step >= box.extent[dim]. One block has dim 0 and step 0.
struct Stripes {
  Box box;
  uint64_t count = 1;
  uint64_t step = 0;
  size_t dim = 0;

  friend bool operator==(const Stripes&, const Stripes&) = default;
};

inline Stripes OneBlock(const Box& box) { return {.box = box}; }
uint64_t Volume(const Stripes& stripes);
Box Block(const Stripes& stripes, uint64_t block);
// The smallest box that contains all blocks.
Box Bounds(const Stripes& stripes);

// What `parts` have that `taken` does not have. Blocks of `taken` cost nothing where `parts` are
// boxes or have its step; else at most 3 stripes for each block of the one with fewer blocks.
std::vector<Stripes> Without(const std::vector<Stripes>& parts, const Stripes& taken);

// The functions below append disjoint stripes to `out`.

// What `box` contains of `stripes`: at most a cut block, whole blocks, and a cut block.
void Clip(const Stripes& stripes, const Box& box, std::vector<Stripes>& out);
// What is in both. Equal steps stay striped; else there are at most 3 for each block of the one
// with fewer blocks.
void Intersect(const Stripes& a, const Stripes& b, std::vector<Stripes>& out);
// What `box` does not contain.
void Subtract(const Stripes& stripes, const Box& box, std::vector<Stripes>& out);

// Rows are counted along the outermost dimension that has more than one index, through all blocks.
uint64_t RowCount(const Stripes& stripes);
void CutRows(const Stripes& stripes, uint64_t begin, uint64_t end, std::vector<Stripes>& out);

// The first block, in order of `parts`, that is in two of them; nullopt: they are disjoint.
std::optional<Box> FindOverlap(const std::vector<Stripes>& parts);

// A box of `whole` that none of `parts` has anything of; nullopt: they cover it. Needs memory for a
// few stripes of each part, however `whole` falls apart.
std::optional<Box> FindHole(const Stripes& whole, const std::vector<Stripes>& parts);

// Whether each element of `whole` is in exactly one of `parts`, none of which has any other.
bool CoverOnce(const std::vector<Stripes>& parts, const Stripes& whole);

}  // namespace dws::mesh
