// Boxes of a tensor's elements, and what planning does with them. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/mesh/mesh_limits.h"

namespace dws::mesh {

// One number a dimension. Dimensions that a tensor does not have are the last ones, with extent 1.
using Index = std::array<uint64_t, limits::kBoxDimsMax>;

// The elements from `lo` to `lo + extent`, in each dimension.
struct Box {
  Index lo{};
  Index extent{1, 1, 1, 1};

  friend bool operator==(const Box&, const Box&) = default;
};

// All of a tensor with at most kBoxDimsMax dimensions.
Box WholeBox(const std::vector<uint64_t>& shape);

uint64_t Volume(const Box& box);
// nullopt: no element is in both.
std::optional<Box> Intersect(const Box& a, const Box& b);

// Row-major strides inside a box of this extent, in elements.
Index RowMajorStrides(const Index& extent);

// The elements [begin, end) of the row-major order of `shape`, as disjoint boxes in that order: at
// most 2 * dimensions - 1. What a rank of FSDP1 or ZeRO holds of a flattened tensor.
std::vector<Box> FlatRangeBoxes(const std::vector<uint64_t>& shape, uint64_t begin, uint64_t end);

// "[0:4, 8:16]", one range a dimension of a tensor with `dims` dimensions.
std::string ToString(const Box& box, size_t dims);

}  // namespace dws::mesh
